/* hold: starts a command on a terminal of its own and guards it until someone collects its end.
 * This file is the way in: options, going into the background, the PID namespace. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hold.h"

static const char usage[] =
    "usage: hold --socket PATH [options] -- command [argument...]\n"
    "       hold --install PATH\n"
    "       hold --probe SOCKET | --probe-ready SOCKET\n"
    "\n"
    "Starts command on a new terminal and guards it: the terminal and the exit status are kept\n"
    "for whoever asks on the control socket, and past a deadline everything is stopped.\n"
    "\n"
    "  --socket PATH              control socket to make (mode 0600)\n"
    "  --size COLSxROWS           size of the terminal (80x24)\n"
    "  --cwd DIR                  directory to start the command in\n"
    "  --daemon                   return once the command runs, and stay in the background\n"
    "  --wait                     start the command when a peer asks for it\n"
    "  --shared                   peers of any uid may connect (mode 0666): as PID 1 only, with\n"
    "                             the socket in a directory that keeps strangers out\n"
    "  --term-grace MS            on SIGTERM, what is left after it is killed (5000)\n"
    "  --linger MS                a SIGTERM is told to the peers, and heeded after this (0)\n"
    "  --movable                  keep the command from what cannot be checkpointed: io_uring and\n"
    "                             MPTCP are not there, and no program gains privileges\n"
    "  --reserve N                as PID 1: leave PIDs up to N to the tool that restores (0)\n"
    "  --namespace auto|yes|no    own PID namespace; auto: if root may make one (auto)\n"
    "  --nonce-from FIFO          take hold's nonce from a FIFO that the sidecar writes to\n"
    "  --nonce-fifo PATH          make such a FIFO, and with --install that too\n"
    "  --install PATH             copy this program to PATH, and nothing else\n"
    "  --probe, --probe-ready     whether a sidecar answers at its socket, or serves its session\n"
    "  --version, --help\n"
    "\n"
    "Exit status: the command's (128 + signal); 127 not found; 126 not executable; 1 other.\n";

#define INNER "--inner="

/* Where a failure goes while starting in the background: an int exit code, then the message. */
static int report_fd = -1;

/* Where Kubernetes looks for why a container ended. Only PID 1 ends a container. */
static void tell_kubelet(const char *text)
{
    int fd = getpid() == 1 ? open("/dev/termination-log", O_WRONLY | O_TRUNC | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    if (write(fd, text, strlen(text)) < 0) {
        /* stderr has it too */
    }
    close(fd);
}

void die(int code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    control_unlink();
    if (report_fd >= 0) {
        struct { int code; char text[sizeof text]; } report = {.code = code};
        memcpy(report.text, text, sizeof text);
        if (write(report_fd, &report, sizeof report.code + strlen(text)) < 0)
            _exit(1);
        _exit(code);
    }
    tell_kubelet(text);
    fprintf(stderr, "hold: %s\n", text);
    _exit(code);
}

void report_ready(void)
{
    int ready = 0;
    if (report_fd < 0)
        return;
    if (write(report_fd, &ready, sizeof ready) != (ssize_t)sizeof ready)
        die(1, "whoever started this session is gone");
    close(report_fd);
    report_fd = -1;
}

static void parse_size(struct options *o, const char *text)
{
    if (!read_size(text, &o->columns, &o->rows))
        die(1, "bad size %s; give columns and rows, such as 80x24", text);
}

static unsigned parse_number(const char *option, const char *text, const char *what, unsigned most)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long value = strtoul(text, NULL, 10);
    if (!digits || text[digits] || digits > 7 || value > most)
        die(1, "bad %s %s; give %s, at most %u", option, text, what, most);
    return (unsigned)value;
}

static unsigned parse_ms(const char *option, const char *text)
{
    return parse_number(option, text, "milliseconds", GRACE_MAX_MS);
}

static bool parse_movable(void)
{
    if (!filter_possible())
        die(1, "--movable is possible on x86_64 and aarch64 only; leave it out");
    return true;
}

static void parse_namespace(struct options *o, const char *text)
{
    if (strcmp(text, "auto") == 0)
        o->namespace = NAMESPACE_AUTO;
    else if (strcmp(text, "yes") == 0)
        o->namespace = NAMESPACE_YES;
    else if (strcmp(text, "no") == 0)
        o->namespace = NAMESPACE_NO;
    else
        die(1, "bad --namespace %s; give auto, yes or no", text);
}

static void parse(struct options *o, int argc, char **argv)
{
    static const struct option known[] = {
        {"socket", required_argument, 0, 's'}, {"size", required_argument, 0, 'z'},
        {"cwd", required_argument, 0, 'c'},    {"daemon", no_argument, 0, 'd'},
        {"namespace", required_argument, 0, 'n'}, {"help", no_argument, 0, 'h'},
        {"wait", no_argument, 0, 'w'},         {"shared", no_argument, 0, 'a'},
        {"term-grace", required_argument, 0, 'g'}, {"install", required_argument, 0, 'i'},
        {"probe", required_argument, 0, 'p'},  {"probe-ready", required_argument, 0, 'P'},
        {"linger", required_argument, 0, 'l'}, {"movable", no_argument, 0, 'm'},
        {"reserve", required_argument, 0, 'r'}, {"version", no_argument, 0, 'v'},
        {"nonce-from", required_argument, 0, 'N'}, {"nonce-fifo", required_argument, 0, 'F'},
        {"inner", required_argument, 0, 'I'},
        {0, 0, 0, 0}};
    for (int got; (got = getopt_long(argc, argv, "+", known, NULL)) != -1;) {
        switch (got) {
        case 's': o->socket = optarg; break;
        case 'z': parse_size(o, optarg); break;
        case 'c': o->cwd = optarg; break;
        case 'd': o->daemon = true; break;
        case 'n': parse_namespace(o, optarg); break;
        case 'w': o->wait = true; break;
        case 'a': o->shared = true; break;
        case 'g': o->term_grace_ms = parse_ms("--term-grace", optarg); break;
        case 'l': o->linger_ms = parse_ms("--linger", optarg); break;
        case 'm': o->movable = parse_movable(); break;
        case 'r': o->reserve = parse_number("--reserve", optarg, "a PID", RESERVE_MAX); break;
        case 'N': o->nonce_from = optarg; break;
        case 'F': nonce_make_fifo(optarg); break;
        case 'I': break;                /* hold itself; inner_report() reads it */
        case 'i': install(optarg); exit(0);
        case 'p': probe(optarg, false); exit(0);
        case 'P': probe(optarg, true); exit(0);
        case 'h': fputs(usage, stdout); exit(0);
        case 'v': puts("hold " HOLD_VERSION); exit(0);
        default: die(1, "unknown option; see hold --help");
        }
    }
    o->words = argv;
    o->command = argv + optind;
    if (!o->socket || !o->socket[0] || !o->command[0])
        die(1, "give --socket PATH and a command; see hold --help");
}

/* hold does not stay in the directory it was started in, so the path may not depend on it. */
static void make_absolute(struct options *o)
{
    char *directory, *whole;
    if (o->socket[0] == '/')
        return;
    directory = getcwd(NULL, 0);
    if (!directory || asprintf(&whole, "%s/%s", directory, o->socket) < 0)
        die(1, "cannot tell the current directory: %s; give an absolute --socket", strerror(errno));
    free(directory);
    o->socket = whole;
}

/* Host mounts still appear inside (slave, not private), and none made inside leaks out. */
static int enter_namespace(void)
{
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) < 0)
        return -1;
    return mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL);
}

static int mount_proc(void)
{
    return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

/* Terminals of its own, numbered from 0: a session that is restored needs the number it had, which
 * on the machine's /dev/pts may be another's by then. Without them it can run, but not hibernate. */
static void mount_terminals(void)
{
    static const char how[] = "newinstance,ptmxmode=0666,mode=0620,gid=5";   /* 5: tty */
    if (mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, how) < 0)
        return;
}

/* Leaving a namespace again is not possible, so it is tried in a child first: in many containers
 * even root may not unshare, or may unshare but not mount /proc. */
static bool namespace_works(void)
{
    int status;
    pid_t probe = fork();
    if (probe == 0) {
        if (enter_namespace() < 0)
            _exit(1);
        pid_t inner = fork();
        if (inner == 0)
            _exit(mount_proc() < 0);
        _exit(inner < 0 || waitpid(inner, &status, 0) != inner || status != 0);
    }
    return probe > 0 && waitpid(probe, &status, 0) == probe && status == 0;
}

static bool want_namespace(const struct options *o)
{
    if (getpid() == 1 || o->namespace == NAMESPACE_NO)
        return false;
    if (geteuid() == 0 && namespace_works())
        return true;
    if (o->namespace == NAMESPACE_YES)
        die(1, "cannot make a PID namespace; run as root with CAP_SYS_ADMIN or use --namespace no");
    return false;
}

/* The program as it lies in this mount namespace: what was opened before belongs to the old one,
 * and a tree that has such a thing cannot be dumped. If it cannot be found it runs as it is. */
static void start_inside(char **argv, int ready)
{
    char path[4096], inner[32];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    size_t count = 0;
    while (argv[count])
        count++;
    char **words = calloc(count + 2, sizeof *words);
    if (length < 0 || !words)
        return;
    path[length] = 0;
    snprintf(inner, sizeof inner, INNER "%d", ready);
    words[0] = argv[0];
    words[1] = inner;
    memcpy(words + 2, argv + 1, (count - 1) * sizeof *words);
    fcntl(ready, F_SETFD, 0);
    execv(path, words);
    fcntl(ready, F_SETFD, FD_CLOEXEC);
    free(words);
}

/* Where hold that was started so reports; -1 for any other. */
static int inner_report(char **argv)
{
    bool inner = getpid() == 1 && argv[1] && strncmp(argv[1], INNER, strlen(INNER)) == 0;
    return inner ? atoi(argv[1] + strlen(INNER)) : -1;
}

_Noreturn static void become_hold(const struct options *o, bool namespaced, int ready)
{
    report_fd = ready;
    if (namespaced && mount_proc() < 0)
        die(1, "cannot mount /proc: %s; use --namespace no", strerror(errno));
    if (namespaced) {
        mount_terminals();
        start_inside(o->words, ready);
    }
    if (o->daemon)
        stdio_to_null();
    else
        prctl(PR_SET_PDEATHSIG, SIGKILL);   /* the process in front stands for the session */
    exit(guard_run(o));
}

/* Between the caller and hold: its session is new, and its end makes hold nobody's child. */
static pid_t fork_away(const struct options *o, bool namespaced, int ready)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    setsid();
    if (namespaced && enter_namespace() < 0)
        _exit(1);
    pid_t hold = fork();
    if (hold == 0)
        become_hold(o, namespaced, ready);
    _exit(hold < 0);
}

/* In front of a namespace: hold is PID 1 in there, this process waits for it out here. */
static pid_t fork_into_namespace(const struct options *o, int ready)
{
    if (enter_namespace() < 0)
        die(1, "cannot make a PID namespace: %s; use --namespace no", strerror(errno));
    pid_t child = fork();
    if (child == 0)
        become_hold(o, true, ready);
    return child;
}

static void await_ready(int fd)
{
    struct { int code; char text[512]; } report = {.code = -1};
    size_t length = 0;
    for (ssize_t n; length < sizeof report - 1; length += (size_t)n) {
        n = read(fd, (char *)&report + length, sizeof report - 1 - length);
        if (n < 0 && errno == EINTR)
            n = 0;
        else if (n <= 0)
            break;
    }
    close(fd);
    if (length < sizeof report.code)
        die(1, "hold ended while starting; look for a limit on memory or processes");
    if (report.code != 0 || length > sizeof report.code)
        die(report.code, "%s", report.text);
}

static pid_t inner_hold;

static void pass_on(int number)
{
    kill(inner_hold, number);
}

static int stand_for(pid_t hold)
{
    int status;
    inner_hold = hold;
    signal(SIGTERM, pass_on);
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    while (waitpid(hold, &status, 0) < 0)
        if (errno != EINTR)
            return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Closed standard descriptors would be taken by the first files opened; inherited others would
 * be kept from their owners for as long as the session lives. */
static void settle_descriptors(int report)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0)
            die(1, "cannot open /dev/null: %s; the session needs a usual /dev", strerror(errno));
    close_all_but(&report, report < 0 ? 0 : 1);
}

int main(int argc, char **argv)
{
    /* The grace is well inside the 30 s that Kubernetes gives a pod. */
    static struct options o = {.columns = 80, .rows = 24, .term_grace_ms = 5000};
    int ready[2];
    int report = inner_report(argv);
    settle_descriptors(report);
    parse(&o, argc, argv);
    make_absolute(&o);
    if (report >= 0) {
        fcntl(report, F_SETFD, FD_CLOEXEC);
        become_hold(&o, false, report);
    }
    bool namespaced = want_namespace(&o);
    /* With a namespace the kernel itself says who is inside, whatever their uid, and in a pod the
     * socket's volume says who else is there. Without one the mode is what keeps others out. */
    if (o.shared && !namespaced && getpid() != 1)
        die(1, "--shared needs hold to be PID 1, or root to make a PID namespace; leave it out, and "
               "in a pod do not set shareProcessNamespace or hostPID");
    if (!o.daemon && !namespaced)
        return guard_run(&o);
    if (pipe2(ready, O_CLOEXEC) < 0)
        die(1, "cannot make a pipe: %s; raise the limit on open files", strerror(errno));
    pid_t child = o.daemon ? fork_away(&o, namespaced, ready[1]) : fork_into_namespace(&o, ready[1]);
    if (child < 0)
        die(1, "cannot start a process: %s; raise the limit on processes", strerror(errno));
    close(ready[1]);
    await_ready(ready[0]);
    if (!o.daemon)
        _exit(stand_for(child));    /* having unshared, it can no longer run anything at exit */
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return 0;
}
