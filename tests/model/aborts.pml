/* Aborts without a command, and leases that come back: the abort cell, two levels of dirty bits, OPEN in the
 * command ring, and a worker that sleeps. One thread of the engine opens three generations of room 0, one
 * after the other, and aborts some; another returns the last lease of room 1, which is closing meanwhile.
 * The worker takes at most one dirty room a turn, so that the rest must be announced again. */
#define THREADS 3
#define ADDRESSES 10
#include "memory.pml"

#define ENGINE 0
#define LEASER 1
#define WORKER 2

#define SLOTS 2
#define GENERATIONS 3
#define SEQ(p) ((p) % SLOTS)
#define PAYLOAD(p) (SLOTS + (p) % SLOTS)
#define SLEEPING 4
#define CELL 5
#define LEAF 6
#define SUMMARY 7
#define WORD 8   /* room 0: 2 * generation + drained */
#define LEASES 9 /* room 1: 2 * count + closed */

#ifdef CELL_WITHOUT_GENERATION
#define CELL_VALUE(g) 1
#define IS_ABORT(c, g) ((c) != 0)
#else
#define CELL_VALUE(g) (2 * (g) + 1)
#define IS_ABORT(c, g) ((c) == 2 * (g) + 1)
#endif

bool bell;
byte aborting = 0;          /* generation whose abort has returned and whose end is awaited */
bool aborted[4];            /* by generation: kvf_abort was called */
bool is_room1_drained = false;

inline wake(t)
{
    if
    :: IS_CLEAR(t) && LOAD(t, SLEEPING) == 1 -> bell = true /* D1 */
    :: IS_CLEAR(t) && LOAD(t, SLEEPING) == 0
    fi
}

/* kvf_dirty_mark: the leaf first. */
inline mark(t, room)
{
#ifdef SUMMARY_FIRST
    atomic { IS_EMPTY(t) -> mem[SUMMARY] = 1 }
    atomic { IS_EMPTY(t) -> mem[LEAF] = mem[LEAF] | (1 << room) }
#else
    atomic { IS_EMPTY(t) -> mem[LEAF] = mem[LEAF] | (1 << room) } /* A1 */
    atomic { IS_EMPTY(t) -> mem[SUMMARY] = 1 } /* A1, D1 */
#endif
}

proctype Engine()
{
    byte generation = 1;
    do
    :: generation <= GENERATIONS ->
        /* write_intent and push_open */
#ifndef CELL_WITHOUT_GENERATION
        store(ENGINE, CELL, 0, RELAXED);
#endif
        MAY_LOAD(ENGINE) && LOAD(ENGINE, SEQ(generation - 1)) == generation - 1; /* C2 */
        store(ENGINE, PAYLOAD(generation - 1), generation, RELAXED);
        store(ENGINE, SEQ(generation - 1), generation, SEQ_CST); /* C1, D1 */
        wake(ENGINE);
        if
        :: MAY_LOAD(ENGINE) && LOAD(ENGINE, WORD) != 2 * generation + 1 ->
            aborted[generation] = true;
#ifdef CELL_IS_RELAXED
            /* Behind the marks, as a relaxed store may be seen. */
            mark(ENGINE, 0);
            store(ENGINE, CELL, CELL_VALUE(generation), RELAXED);
#else
            store(ENGINE, CELL, CELL_VALUE(generation), RELEASE); /* A1 */
            mark(ENGINE, 0);
#endif
            wake(ENGINE);
            aborting = generation
        :: true /* not aborted */
        fi;
end_waiting: /* of a room that nobody aborts and that need not succeed */
        MAY_LOAD(ENGINE) && LOAD(ENGINE, WORD) == 2 * generation + 1; /* R1 */
        aborting = 0;
        generation++
    :: else -> break
    od
}

/* kvf_lease_give_back. */
proctype Leaser()
{
    bool is_last = false;
    atomic {
        IS_EMPTY(LEASER) ->
        mem[LEASES] = mem[LEASES] - 2;
        is_last = mem[LEASES] == 1
    } /* L2 */
    if
    :: is_last ->
        mark(LEASER, 1);
        wake(LEASER)
    :: else
    fi
}

/* Ends generation `now`; why: true if for an abort. */
inline end_room(why)
{
    assert(!(why) || aborted[now]); /* nobody aborted this room */
    store(WORKER, WORD, 2 * now + 1, RELEASE); /* R1 */
    is_open = false
}

inline take_open()
{
    now = LOAD(WORKER, PAYLOAD(pos));
    assert(now == pos + 1);
    store(WORKER, SEQ(pos), pos + SLOTS, RELEASE); /* C2 */
    pos++;
    is_open = true;
    has_worked = true;
#ifndef OPEN_IGNORES_THE_CELL
    if
    :: MAY_LOAD(WORKER) && IS_ABORT(LOAD(WORKER, CELL), now) -> end_room(true) /* A1 */
    :: MAY_LOAD(WORKER) && !IS_ABORT(LOAD(WORKER, CELL), now)
    fi
#endif
}

/* kvf_client_take_dirty */
inline take_room(room)
{
    has_worked = true;
    if
    :: room == 0 && is_open ->
        if
        :: MAY_LOAD(WORKER) && IS_ABORT(LOAD(WORKER, CELL), now) -> end_room(true) /* A1 */
        :: MAY_LOAD(WORKER) && !IS_ABORT(LOAD(WORKER, CELL), now)
        fi
    :: room == 1 ->
        if
        :: MAY_LOAD(WORKER) && LOAD(WORKER, LEASES) == 1 -> is_room1_drained = true /* L2 */
        :: MAY_LOAD(WORKER) && LOAD(WORKER, LEASES) != 1
        fi
    :: else /* an abort of a generation whose OPEN is not read yet: that OPEN will look */
    fi
}

/* kvf_dirty_take with max 1 */
inline take_dirty()
{
    if
    :: MAY_LOAD(WORKER) && LOAD(WORKER, SUMMARY) == 0
    :: MAY_LOAD(WORKER) && LOAD(WORKER, SUMMARY) == 1 ->
#ifdef LEAF_BEFORE_SUMMARY
        MAY_LOAD(WORKER) -> seen = LOAD(WORKER, LEAF);
#endif
        mem[SUMMARY] = 0; /* A1, an exchange; only read-modify-writes touch these words */
#ifndef LEAF_BEFORE_SUMMARY
        MAY_LOAD(WORKER) -> seen = LOAD(WORKER, LEAF);
#endif
        if
        :: seen & 1 -> picked = 1
        :: seen == 2 -> picked = 2
        :: else
        fi;
        mem[LEAF] = mem[LEAF] & ~picked; /* A1 */
#ifndef REST_IS_FORGOTTEN
        if
        :: seen & ~picked -> mem[SUMMARY] = 1
        :: else
        fi;
#endif
        seen = 0;
        if
        :: picked == 1 -> take_room(0)
        :: picked == 2 -> take_room(1)
        :: else
        fi;
        picked = 0
    fi
}

proctype Worker()
{
    byte pos = 0;
    byte now = 0; /* generation of room 0 that the core knows */
    byte seen = 0;
    byte picked = 0;
    bool is_open = false;
    bool has_closed = false;
    bool has_worked = false;
    do
    :: bell = false;
        if
        :: MAY_LOAD(WORKER) && LOAD(WORKER, SEQ(pos)) == pos + 1 -> take_open() /* C1 */
        :: MAY_LOAD(WORKER) && LOAD(WORKER, SEQ(pos)) != pos + 1
        fi;
        take_dirty();
        if
        :: is_open -> end_room(false); has_worked = true /* its transfer has landed; it may, it need not */
        :: !has_closed ->
            /* Room 1 closes: kvf_lease_close */
            atomic { IS_EMPTY(WORKER) -> seen = mem[LEASES]; mem[LEASES] = mem[LEASES] | 1 }
            is_room1_drained = seen < 2;
            seen = 0;
            has_closed = true;
            has_worked = true
        :: has_closed
        fi;
        if
        :: has_worked -> has_worked = false
        :: else ->
            store(WORKER, SLEEPING, 1, SEQ_CST); /* D1 */
            if
            :: IS_CLEAR(WORKER) && LOAD(WORKER, SEQ(pos)) == pos + 1
            :: IS_CLEAR(WORKER) && LOAD(WORKER, SEQ(pos)) != pos + 1 ->
#ifdef SLEEP_IGNORES_DIRTY
end_blind:      bell
#else
                if
                :: IS_CLEAR(WORKER) && LOAD(WORKER, SUMMARY) == 1
                :: IS_CLEAR(WORKER) && LOAD(WORKER, SUMMARY) == 0 ->
end_asleep:         bell
                fi
#endif
            fi;
            store(WORKER, SLEEPING, 0, RELAXED)
        fi
    od
}

init
{
    atomic {
        mem[SEQ(1)] = 1;
        mem[LEASES] = 2;
        run Engine();
        run Leaser();
        run Worker();
        run Buffer(ENGINE);
        run Buffer(LEASER);
        run Buffer(WORKER)
    }
}

/* An abort that has returned ends its room, whatever was in the rings and whoever slept. */
ltl no_abort_lost { [] (aborting != 0 -> <> (aborting == 0)) }
/* The last lease that comes back ends its room. */
ltl no_lease_lost { <> is_room1_drained }
