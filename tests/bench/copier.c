/* The limit of a compaction: reads what must be read, writes, syncs, and takes the sources away. Nothing is checked.

       copier DIRECTORY PLAN

   PLAN, in the machine's own byte order, per group: the numbers of sources, runs and header bytes; the name of the
   output and of each source (32 bytes each); per run the source's number, offset and length; the header. Sources are
   read 4 MiB at a time where runs lie close to each other, else run by run. The lowest name becomes the output. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME = 32, CHUNK = 4 << 20, NEAR = 64 << 10, MOST = 4096 };

static char read_buffer[CHUNK], write_buffer[CHUNK];
static size_t gathered;

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void write_all(int fd, const char *data, size_t length) {
    while (length) {
        ssize_t done = write(fd, data, length);
        check(done > 0, "write");
        data += done, length -= (size_t)done;
    }
}

static void flush(int fd) {
    write_all(fd, write_buffer, gathered);
    gathered = 0;
}

static void gather(int fd, const char *data, size_t length) {
    while (length) {
        size_t part = length < CHUNK - gathered ? length : CHUNK - gathered;
        memcpy(write_buffer + gathered, data, part);
        gathered += part, data += part, length -= part;
        if (gathered == CHUNK) flush(fd);
    }
}

static void read_all(int fd, char *data, size_t length, uint64_t offset) {
    while (length) {
        ssize_t done = pread(fd, data, length, (off_t)offset);
        check(done > 0, "pread");
        data += done, length -= (size_t)done, offset += (uint64_t)done;
    }
}

/* Copies runs [first, last) of one source: as many at a time as lie in one chunk without a wide gap. */
static void copy_runs(int in, int out, const uint64_t (*runs)[3], uint64_t first, uint64_t last) {
    while (first < last) {
        uint64_t begin = runs[first][1], end = begin + runs[first][2], next = first + 1;
        while (next < last && runs[next][1] >= end && runs[next][1] - end <= NEAR &&
               runs[next][1] + runs[next][2] - begin <= CHUNK)
            end = runs[next][1] + runs[next][2], next++;
        if (end - begin <= CHUNK) {
            read_all(in, read_buffer, end - begin, begin);
            for (; first < next; first++) gather(out, read_buffer + (runs[first][1] - begin), runs[first][2]);
        } else { /* one run, longer than a chunk */
            for (; begin < end; begin += CHUNK) {
                size_t part = end - begin < CHUNK ? end - begin : CHUNK;
                read_all(in, read_buffer, part, begin);
                gather(out, read_buffer, part);
            }
            first = next;
        }
    }
}

int main(int count, char **arguments) {
    struct stat found;
    int outputs[MOST];
    const char *names[MOST];
    size_t groups = 0;
    check(count == 3, "copier DIRECTORY PLAN");
    int file = open(arguments[2], O_RDONLY);
    check(file >= 0 && fstat(file, &found) == 0, arguments[2]);
    char *plan = malloc((size_t)found.st_size);
    check(plan != NULL, "memory");
    read_all(file, plan, (size_t)found.st_size, 0);
    check(chdir(arguments[1]) == 0, arguments[1]);
    for (char *at = plan; at < plan + found.st_size;) {
        const uint64_t *numbers = (const uint64_t *)at;
        uint64_t sources = numbers[0], run_count = numbers[1], header = numbers[2];
        const char *output = at + 24, *source = output + NAME;
        const uint64_t(*runs)[3] = (const uint64_t(*)[3])(source + sources * NAME);
        int out = open(output, O_WRONLY | O_CREAT | O_EXCL, 0644);
        check(out >= 0 && groups < MOST, output);
        gather(out, (const char *)(runs + run_count), header);
        for (uint64_t number = 0, run = 0; number < sources; number++) {
            uint64_t first = run;
            while (run < run_count && runs[run][0] == number) run++;
            int in = open(source + number * NAME, O_RDONLY);
            check(in >= 0, source + number * NAME);
            copy_runs(in, out, runs, first, run);
            close(in);
        }
        flush(out);
        outputs[groups] = out, names[groups++] = at;
        at = (char *)(runs + run_count) + (header + 7) / 8 * 8;
    }
    for (size_t group = 0; group < groups; group++) check(fsync(outputs[group]) == 0 && close(outputs[group]) == 0, "fsync");
    int directory = open(".", O_RDONLY | O_DIRECTORY);
    check(fsync(directory) == 0, "fsync");
    for (size_t group = 0; group < groups; group++) {
        uint64_t sources = *(const uint64_t *)names[group];
        const char *output = names[group] + 24, *source = output + NAME;
        check(rename(output, source) == 0, source);
        for (uint64_t number = 1; number < sources; number++) check(unlink(source + number * NAME) == 0, source);
    }
    check(fsync(directory) == 0, "fsync");
    return 0;
}
