/* A program with no shell around it: repeats every line with its number and its uid. */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    char line[256];
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("echo ready, uid %d\n", (int)getuid());
    for (int number = 1; fgets(line, sizeof line, stdin); number++)
        printf("%d: %s", number, line);
    return 0;
}
