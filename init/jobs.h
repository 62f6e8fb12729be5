/* Jobs: commands that run beside what is on the terminal. The file they are asked for and told of in
 * is made before the keeper, which is the only one to act on it, and goes where the keeper goes: it
 * is memory of the tree that a checkpoint dumps. See jobs.c. */
#ifndef JOBS_H
#define JOBS_H

#include <stdint.h>
#include <sys/types.h>

#define JOBS_NAME "holdfast-jobs"
/* In the keeper, wherever it was restored: that is how another hold finds it. Far above the twenty
 * or so that hold has open when it makes the keeper. */
#define JOBS_FD 100

#define JOB_SLOTS 16
#define JOB_SPEC_BYTES (512u * 1024)
#define JOB_RING_BYTES (4u * 1024 * 1024)

/* The layout, which the sidecar knows too (jobs_file.py). Each half of a slot has one writer. */
#define JOBS_MAGIC "HFJOBS1\n"
#define JOBS_SLOTS_AT 4096u
#define JOBS_SPECS_AT 8192u
#define JOBS_RINGS_AT (JOBS_SPECS_AT + JOB_SLOTS * JOB_SPEC_BYTES)
#define JOBS_BYTES (JOBS_RINGS_AT + JOB_SLOTS * JOB_RING_BYTES)

struct jobs_head {
    char magic[8];
    uint32_t slots, spec_bytes, ring_bytes;
};

struct job_asked {                  /* by the sidecar */
    uint8_t wanted;                 /* written last: 1, there is to be such a job; 0, forget it */
    uint8_t signal;                 /* the last one asked for, */
    uint16_t signals;               /* and how many were */
    uint32_t length;                /* of the specification */
    char id[24];
    char reserved[32];
};

enum { JOB_FREE, JOB_RUNNING, JOB_OVER, JOB_DONE };

struct job_told {                   /* by the keeper */
    uint8_t state;                  /* over: it ended; done: and nobody can write its output */
    uint8_t reserved[1];
    uint16_t signalled;             /* how many signals were sent */
    int32_t pid;
    int32_t status;                 /* of waitpid() */
    int32_t error;                  /* errno: it could not be started */
    uint64_t started_ns, ended_ns;  /* CLOCK_REALTIME */
    uint64_t head;                  /* bytes of output, ever; the ring has the last of them */
    char rest[24];
};

struct job_slot {
    struct job_asked asked;
    struct job_told told;
};
_Static_assert(sizeof(struct job_asked) == 64 && sizeof(struct job_told) == 64, "as it is written");
_Static_assert(JOBS_SLOTS_AT + JOB_SLOTS * sizeof(struct job_slot) <= JOBS_SPECS_AT, "it fits");

/* A specification: these, then strings that each end with NUL: the directory (none: as `like`'s), the
 * arguments, and what is set in the environment. */
struct job_spec {
    int32_t like;                   /* the process whose directory and environment it gets */
    uint32_t arguments, settings;
};

int jobs_make(void);                /* the file, or -1: there will be no jobs */
int jobs_find(pid_t keeper);        /* that of a keeper which another hold made, or -1 */

/* The keeper's life: reaps, starts jobs and collects their output, until `command` has ended.
 * Returns its status. `file` may be -1. */
int jobs_serve(int file, pid_t command);

#endif
