/* The worker's end between an engine's intent and the room's end: the worker may be killed at any step, the
 * supervisor closes the epoch, ends what it finds and starts the next worker, while the engine opens two
 * generations of one room, one after the other, and reuses the pages of the first once it reads as drained. */
#define THREADS 3
#define ADDRESSES 7
#include "memory.pml"

#define ENGINE 0
#define WORKER 1
#define SUPERVISOR 2

#define SLOTS 2
#define GENERATIONS 2
#define SEQ(p) ((p) % SLOTS)
#define PAYLOAD(p) (SLOTS + (p) % SLOTS) /* 4 * generation + epoch */
#define EPOCH 4
#define INTENT 5
#define WORD 6 /* 2 * generation + drained */
#define HAS_ENDED(t, g) (LOAD(t, WORD) >= 2 * (g) + 1)

bool is_killed = false;
bool has_ended = false; /* this worker's process */
byte reused = 0;        /* generations whose pages the engine has handed out again */
byte starts = 0;

proctype Engine()
{
    byte generation = 1;
    byte epoch = 0;
    do
    :: generation <= GENERATIONS ->
        /* kvf_client_epoch: -KVF_E_WORKER_GONE while there is none, and the engine tries again. */
        MAY_LOAD(ENGINE) && LOAD(ENGINE, EPOCH) != 0; /* E1 */
        epoch = (LOAD(ENGINE, EPOCH) == 0 -> 1 : LOAD(ENGINE, EPOCH)); /* the one it saw, or a later one */
        store(ENGINE, INTENT, generation, RELEASE); /* O1 */
        MAY_LOAD(ENGINE) && LOAD(ENGINE, SEQ(generation - 1)) == generation - 1;
        store(ENGINE, PAYLOAD(generation - 1), 4 * generation + epoch, RELAXED);
        store(ENGINE, SEQ(generation - 1), generation, SEQ_CST); /* C1 */
        epoch = 0;
        MAY_LOAD(ENGINE) && HAS_ENDED(ENGINE, generation); /* R1 */
        reused = generation;
        generation++
    :: else -> break
    od
}

/* kvf_reap_room: by the supervisor, and by the next worker when it takes the client. */
inline scan(t)
{
    MAY_LOAD(t) -> found = LOAD(t, INTENT); /* O1 */
#ifdef SCAN_OF_WORDS_ONLY
    found = (LOAD(t, WORD) % 2 == 0 -> LOAD(t, WORD) / 2 : 0);
#endif
    if
    :: found != 0 && !HAS_ENDED(t, found) -> store(t, WORD, 2 * found + 1, RELEASE) /* R1 */
    :: else
    fi;
    found = 0
}

/* Where the predecessor stopped: kvf_spsc_recover. */
#define POSITION_IN(i) (mem[i] - ((mem[i] + (i)) % 2))

proctype Worker(byte mine)
{
    byte pos = 0;
    byte found = 0;
    byte epoch = 0;
    {
        pos = (POSITION_IN(0) < POSITION_IN(1) -> POSITION_IN(0) : POSITION_IN(1));
        scan(WORKER);
        starts = mine; /* KVF_LINK_READY */
end_serving:
        do
        :: MAY_LOAD(WORKER) && LOAD(WORKER, SEQ(pos)) == pos + 1 ->
            found = LOAD(WORKER, PAYLOAD(pos)) / 4;
            epoch = LOAD(WORKER, PAYLOAD(pos)) % 4;
            store(WORKER, SEQ(pos), pos + SLOTS, RELEASE); /* C2; from here on only the intent knows of it */
            pos++;
            if
#ifndef OLD_OPENS_ARE_SERVED
            :: MAY_LOAD(WORKER) && HAS_ENDED(WORKER, found) /* dropped */
#ifdef OLD_OPENS_ARE_DROPPED
            :: MAY_LOAD(WORKER) && !HAS_ENDED(WORKER, found) && epoch != mine
#else
            :: MAY_LOAD(WORKER) && !HAS_ENDED(WORKER, found) && epoch != mine ->
                store(WORKER, WORD, 2 * found + 1, RELEASE) /* NEVER_POSTED */
#endif
            :: MAY_LOAD(WORKER) && !HAS_ENDED(WORKER, found) && epoch == mine ->
#else
            :: true ->
#endif
                /* Peers may write its pages from here on. */
                assert(reused < found);
                store(WORKER, WORD, 2 * found, RELEASE);
                store(WORKER, WORD, 2 * found + 1, RELEASE)
            fi;
            found = 0;
            epoch = 0
        od
    } unless {
        is_killed && mine == 1
    };
    has_ended = true
}

proctype Killer()
{
    starts == 1;
    if
    :: is_killed = true
    :: true
    fi
}

proctype Supervisor()
{
    byte found = 0;
    starts == 1;
    store(SUPERVISOR, EPOCH, 1, RELEASE); /* E1 */
end_watching:
    /* Reaped: what it stored is visible. */
    has_ended && IS_EMPTY(WORKER);
    store(SUPERVISOR, EPOCH, 0, RELEASE); /* E1, before the scan */
    scan(SUPERVISOR);
    IS_EMPTY(SUPERVISOR) -> run Worker(2);
    starts == 2;
    store(SUPERVISOR, EPOCH, 2, RELEASE) /* E1 */
}

init
{
    atomic {
        mem[SEQ(1)] = 1;
        run Engine();
        run Worker(1);
        run Killer();
        run Supervisor();
        run Buffer(ENGINE);
        run Buffer(WORKER);
        run Buffer(SUPERVISOR)
    }
}

/* Every room that an engine opened reads as drained sooner or later. */
ltl all_end { <> (reused == GENERATIONS) }
