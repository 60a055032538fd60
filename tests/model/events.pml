/* The event ring, the lost-event count and the armed flag: three rooms end, an event ring of two slots, an
 * engine that sleeps until the datagram. With WAITS the engine is kvf_wait on the last room's word instead
 * and never looks at the ring. Neither sleeps with the cap the library has. */
#define THREADS 2
#define ADDRESSES 9
#include "memory.pml"

#define ENGINE 0
#define WORKER 1

#define SLOTS 2
#define ROOMS 3
#define SEQ(p) ((p) % SLOTS)
#define PAYLOAD(p) (SLOTS + (p) % SLOTS)
#define LOST 4
#define ARMED 5
#define WORD(r) (6 + (r))
#define ALL 7

bool datagram;  /* the event socket is readable */
byte known = 0; /* rooms, as bits, that the engine knows to have ended */

/* A look that follows the arming. */
#ifdef LOOK_ONLY_ACQUIRES
#define MAY_LOOK MAY_LOAD(ENGINE)
#else
#define MAY_LOOK IS_CLEAR(ENGINE)
#endif

inline tell_if_armed()
{
    if
    :: IS_CLEAR(WORKER) && LOAD(WORKER, ARMED) == 0 /* D2 */
    :: IS_CLEAR(WORKER) && LOAD(WORKER, ARMED) == 1 ->
        atomic { IS_EMPTY(WORKER) -> was_armed = mem[ARMED]; mem[ARMED] = 0 }
        datagram = datagram || was_armed;
        was_armed = false
    fi
}

proctype Worker()
{
    byte pos = 0;
    byte room = 0;
    bool was_armed = false;
    do
    :: room < ROOMS ->
#ifdef WORD_AFTER_EVENT
        skip;
#else
        store(WORKER, WORD(room), 1, SEQ_CST); /* R1, D2 */
#endif
        if
        :: MAY_LOAD(WORKER) && LOAD(WORKER, SEQ(pos)) == pos -> /* C2 */
            store(WORKER, PAYLOAD(pos), room + 1, RELAXED);
            store(WORKER, SEQ(pos), pos + 1, SEQ_CST); /* C1, D2 */
            pos++
        :: MAY_LOAD(WORKER) && LOAD(WORKER, SEQ(pos)) != pos ->
#ifdef LOSS_IS_SILENT
            skip
#else
            atomic { IS_EMPTY(WORKER) -> mem[LOST] = mem[LOST] + 1 } /* D2 */
#endif
        fi;
#ifdef WORD_AFTER_EVENT
        store(WORKER, WORD(room), 1, RELEASE);
#endif
        tell_if_armed();
        room++
    :: else -> break
    od
}

/* What an engine does when it is told that events were lost: it asks for every room it has. */
inline scan()
{
    room = 0;
    do
    :: room < ROOMS && MAY_LOAD(ENGINE) ->
        known = known | (LOAD(ENGINE, WORD(room)) << room);
        room++
    :: room == ROOMS -> room = 0; break
    od
}

/* kvf_events_next's look: -EOVERFLOW, an event, or nothing. */
inline look()
{
    found = false;
#ifdef LOST_IS_RELAXED
    words = LOAD(ENGINE, WORD(0)) | LOAD(ENGINE, WORD(1)) << 1 | LOAD(ENGINE, WORD(2)) << 2;
#endif
    MAY_LOOK -> lost = LOAD(ENGINE, LOST); /* D2 */
    if
    :: lost != lost_seen ->
        lost_seen = lost;
#ifdef LOST_IS_RELAXED
        known = known | words;
#else
        scan();
#endif
        found = true
    :: else ->
        if
        :: MAY_LOOK && LOAD(ENGINE, SEQ(pos)) == pos + 1 -> /* C1, D2 */
            room = LOAD(ENGINE, PAYLOAD(pos));
            assert(room > 0 && room <= ROOMS);
            assert((known & (1 << (room - 1))) == 0 || lost_seen > 0); /* each event once */
            known = known | (1 << (room - 1));
            room = 0;
            store(ENGINE, SEQ(pos), pos + SLOTS, RELEASE); /* C2 */
            pos++;
            found = true
        :: MAY_LOOK && LOAD(ENGINE, SEQ(pos)) != pos + 1
        fi
    fi;
#ifdef LOST_IS_RELAXED
    words = 0;
#endif
    lost = 0
}

inline arm()
{
    store(ENGINE, ARMED, 1, SEQ_CST) /* D2 */
}

#ifdef WAITS
/* kvf_wait of the last room: arms, asks for the word, sleeps. */
proctype Engine()
{
    do
    :: known == ALL -> break
    :: else ->
#ifndef LOOKS_BEFORE_ARMING
        arm();
#endif
        if
        :: MAY_LOOK && LOAD(ENGINE, WORD(ROOMS - 1)) == 1 -> known = ALL
        :: MAY_LOOK && LOAD(ENGINE, WORD(ROOMS - 1)) == 0 ->
#ifdef LOOKS_BEFORE_ARMING
            arm();
#endif
end_wait:   datagram;
            datagram = false
        fi
    od
}
#else
proctype Engine()
{
    byte pos = 0;
    byte lost_seen = 0;
    byte lost = 0;
    byte room = 0;
    byte words = 0;
    bool found = false;
    do
    :: look();
        if
        :: found
        :: else ->
            datagram = false; /* take_for_engine */
#ifdef LOOKS_BEFORE_ARMING
            look();
            arm();
#else
            arm();
            look();
#endif
            if
            :: found
            :: else ->
end_sleep:      datagram /* in epoll_wait */
            fi
        fi
    od
}
#endif

init
{
    atomic {
        mem[SEQ(1)] = 1;
        run Engine();
        run Worker();
        run Buffer(ENGINE);
        run Buffer(WORKER)
    }
}

/* The engine learns that every room has ended, by an event or because it was told that events were lost. */
ltl all_known { <> (known == ALL) }
