/* Passes Ethernet frames between two interfaces, each a fixed time after it came in, for kernels without netem.

   delayline INTERFACE INTERFACE MICROSECONDS [LOST_PER_MILLION SEED]

   Of a million frames, so many are lost at random, on average and in either direction. A 'd' on its standard input makes
   it dark: all frames are lost until a 'u'. Ends when its standard input closes. Frames longer than an Ethernet frame mean that an offload is still on: they end
   it with an error, since they would hide what travels. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#define FRAMES 16384 /* over a second of full frames at 100 Mbit/s */
#define FRAME_NBYTES 1514
#define RECEIVE_BUFFER_NBYTES (16 << 20)

typedef long long nanoseconds;

struct frame {
    nanoseconds due;
    size_t nbytes;
    unsigned char bytes[FRAME_NBYTES];
};

struct way { /* one direction */
    int from, to;
    unsigned head, tail; /* the next to leave, the next free place */
    struct frame *frames;
};

static void fail(const char *what) {
    fprintf(stderr, "delayline: %s: %s\n", what, strerror(errno));
    exit(1);
}

static nanoseconds in_nanoseconds(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

static nanoseconds now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* the clock of SO_TIMESTAMPNS */
    return in_nanoseconds(t);
}

static int open_interface(const char *name) {
    int on = 1, buffer = RECEIVE_BUFFER_NBYTES, s = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    struct packet_mreq all = {.mr_type = PACKET_MR_PROMISC};
    address.sll_ifindex = all.mr_ifindex = (int)if_nametoindex(name);
    if (s < 0 || bind(s, (struct sockaddr *)&address, sizeof address)) fail(name);
    if (setsockopt(s, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on)) fail("PACKET_IGNORE_OUTGOING");
    if (setsockopt(s, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all)) fail("PACKET_ADD_MEMBERSHIP");
    if (setsockopt(s, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on)) fail("PACKET_QDISC_BYPASS");
    if (setsockopt(s, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on)) fail("SO_TIMESTAMPNS");
    if (setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer)) fail("SO_RCVBUFFORCE");
    return s;
}

/* Delays count from the kernel's time of receipt, so that waking up late does not add up. */
static nanoseconds received(struct msghdr *message) {
    struct timespec t;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
            memcpy(&t, CMSG_DATA(c), sizeof t);
            return in_nanoseconds(t);
        }
    return now();
}

static int dark;
static unsigned long long lost_per_million, noise;

static int is_lost(void) { /* xorshift64* */
    if (dark) return 1;
    if (!lost_per_million) return 0;
    noise ^= noise >> 12, noise ^= noise << 25, noise ^= noise >> 27;
    return ((noise * 2685821657736338717ULL) >> 32) % 1000000 < lost_per_million;
}

static void take_in(struct way *way, nanoseconds delay) {
    while (way->tail - way->head < FRAMES) {
        struct frame *frame = &way->frames[way->tail % FRAMES];
        char control[128];
        struct iovec bytes = {frame->bytes, FRAME_NBYTES};
        struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t nbytes = recvmsg(way->from, &message, MSG_DONTWAIT | MSG_TRUNC);
        if (nbytes < 0) return;
        if (nbytes > FRAME_NBYTES) {
            fprintf(stderr, "delayline: a frame of %zd bytes: an offload is on\n", nbytes);
            exit(1);
        }
        if (is_lost()) continue;
        frame->nbytes = (size_t)nbytes;
        frame->due = received(&message) + delay;
        way->tail++;
    }
}

static void let_out(struct way *way) {
    while (way->head != way->tail && way->frames[way->head % FRAMES].due <= now()) {
        struct frame *frame = &way->frames[way->head++ % FRAMES];
        if (send(way->to, frame->bytes, frame->nbytes, 0) < 0) perror("delayline: a frame was lost");
    }
}

int main(int argc, char **argv) {
    struct sched_param first = {.sched_priority = 1};
    char order;
    if (argc != 4 && argc != 6) return 2;
    nanoseconds delay = atoll(argv[3]) * 1000;
    if (argc == 6) lost_per_million = (unsigned long long)atoll(argv[4]), noise = 1 + (unsigned long long)atoll(argv[5]);
    int a = open_interface(argv[1]), b = open_interface(argv[2]);
    struct way ways[2] = {{.from = a, .to = b}, {.from = b, .to = a}};
    struct pollfd polled[3] = {{a, POLLIN, 0}, {b, POLLIN, 0}, {0, POLLIN, 0}};
    for (int i = 0; i < 2; i++)
        if (!(ways[i].frames = malloc(FRAMES * sizeof *ways[i].frames))) fail("malloc");
    sched_setscheduler(0, SCHED_RR, &first); /* a busy machine must not stretch the delay; without leave it just may */
    for (;;) {
        if (polled[2].revents) {
            if (read(0, &order, 1) <= 0) break;
            dark = order == 'd';
        }
        nanoseconds wait = 1000000000LL, moment = now();
        for (int i = 0; i < 2; i++) {
            take_in(&ways[i], delay);
            let_out(&ways[i]);
            if (ways[i].head != ways[i].tail) {
                nanoseconds left = ways[i].frames[ways[i].head % FRAMES].due - moment;
                wait = left < wait ? (left > 0 ? left : 0) : wait;
            }
        }
        struct timespec timeout = {wait / 1000000000LL, wait % 1000000000LL};
        if (ppoll(polled, 3, &timeout, NULL) < 0 && errno != EINTR) fail("ppoll");
    }
    return 0;
}
