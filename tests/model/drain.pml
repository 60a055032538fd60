/* The drain protocol: one sink, WRITERS sources, LANES lanes to each, GENERATIONS rooms one after the other
 * over the same pages (page w is the part of writer w). What is posted lies in a lane, in order, for as long
 * as it likes, and lands without asking anybody, also when its writer has been told of an error, was fenced
 * by its own side, or is gone; only the sink's own fence ends it, once it has destroyed the lane. Control
 * frames overtake it. Deadlines may pass at any moment and only escalate. FAULTS of these may happen, at any
 * moment and together: a lane breaks, a control connection is lost, a writer freezes and perhaps thaws, a
 * writer is gone and comes back empty, the sink's worker is gone, a fence hangs, an engine is gone.
 *
 * Every step is one event of a core: it runs to its end before the next, as in the daemon, whose loop is one
 * thread. Nothing can go on for ever (the run with -l finds no cycle), so "eventually" is what holds when
 * nothing can happen any more: the judge at the end. */

#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef GENERATIONS
#define GENERATIONS 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define HANDLES 2
#define MASK ((1 << LANES) - 1)
#define GW(g, w) ((g) * WRITERS + (w))
#define WL(w, l) ((w) * LANES + (l))
#define BIT(l) (1 << (l))
/* The epochs of a writer's lanes in one byte, four bits each. */
#define EPOCH_IN(epochs, l) (((epochs) >> (4 * (l))) & 15)

mtype = { GRANT, ABORT, ACCEPT, DECLINE, ENDED, END, DRAIN }

/* What is owed is written at once and read at any time later. A nonce is a generation here. */
chan to_writer[WRITERS] = [4] of { mtype, byte /* nonce */, byte /* handle */, byte /* epochs */ };
chan to_sink[WRITERS] = [4] of { mtype, byte /* nonce */, byte /* broken lanes */ };
/* Markers on their way: kind, handle, and for the claims alone the generation. */
chan marks[WRITERS * LANES] = [2] of { mtype, byte, byte };
#ifdef OLD_CONNECTION_IS_READ
chan unread[WRITERS] = [4] of { mtype, byte, byte, byte };
#endif

/* ---- the sink: room, grants, lanes ------------------------------------------------------------------- */

#define FREE 0
#define OPEN 1
#define CLOSING 2
#define DRAINED 3
#define QUARANTINED 4
byte now = 0; /* index of the current generation; rooms before it are drained */
byte phase = FREE;
#define NO_OUTCOME 0
#define SUCCESS 1
#define FAILED 2
byte outcome = NO_OUTCOME;
byte fixed = NO_OUTCOME; /* what it was at the close */
byte landed = 0;         /* writers whose grant of the current room has landed */
#define IDLE 255
byte owner[WRITERS]; /* shadow owner per page: a generation, or IDLE from the drained word on */

#define NONE 0
#define QUEUED 1
#define SENT 2
typedef grant {
    byte state;
    byte handle;
    byte epochs;
    byte proven;
    byte ended;
    bool answered;
    bool closed;
    bool told_abort;
    bool counted_out
};
grant grants[GENERATIONS * WRITERS];

#define DOWN 0 /* destroyed: nothing of its epoch can land */
#define UP 1
#define FENCING 2
#define HUNG 3
typedef lane {
    byte state;
    byte epoch;
    byte there;       /* UP or DOWN: the writer's end */
    byte epoch_there; /* its epoch */
    bool broken
};
lane lanes[WRITERS * LANES];

#define ALIVE 0
#define DYING 1 /* hung up and not reaped: its lanes still take what comes */
byte worker = ALIVE;

/* An external lease: a copy by the engine's device that writes into page 0. */
#define NO_COPY 0
#define COPYING 1
#define COPIED 2
byte copy = NO_COPY;
byte copy_of = 0;
bool is_engine_gone = false;

/* ---- the writers ----------------------------------------------------------------------------------------- */

#define GONE 2 /* the room was open and has ended */
byte rooms[GENERATIONS * WRITERS];

#define PARKED 1
#define ACTIVE 2
typedef source_grant {
    byte state;
    byte handle;
    byte epochs;
    byte marked;
    byte marks_done; /* completions of markers */
    byte dead;
    bool is_closing
};
source_grant sources[GENERATIONS * WRITERS];
/* Lanes on which data of this grant is posted and may land, until its marker has come behind it or the sink
 * has destroyed the lane. Nothing the writer does, or that happens to it, takes it back. */
byte flight[GENERATIONS * WRITERS];
byte flight_handle[GENERATIONS * WRITERS];

bool is_up[WRITERS];       /* the control connection, as the sink sees it */
bool is_up_there[WRITERS]; /* as the writer sees it */
bool cut[WRITERS];
bool frozen[WRITERS];

byte faults = FAULTS;
bool calm = false; /* no more faults, and engines decide nothing more */
bool is_judged = false;

hidden byte i, w, l, g, h, x;

/* ---- questions --------------------------------------------------------------------------------------------- */

#define ARE_LANES_UP(W)                                                                        \
    (lanes[WL(W, 0)].state == UP && (LANES == 1 || lanes[WL(W, LANES - 1)].state == UP))
#define EPOCHS_OF(W)                                                                           \
    (lanes[WL(W, 0)].epoch | (LANES == 1 -> 0 : lanes[WL(W, LANES - 1)].epoch << 4))
#define IS_LANE_THERE(W, L, E)                                                                 \
    (lanes[WL(W, L)].there == UP && lanes[WL(W, L)].epoch_there == EPOCH_IN(E, L))
#define ARE_LANES_THERE(W, E)                                                                  \
    (IS_LANE_THERE(W, 0, E) && (LANES == 1 || IS_LANE_THERE(W, LANES - 1, E)))
#define REACHES_SINK(W, L)                                                                     \
    (lanes[WL(W, L)].state != DOWN && lanes[WL(W, L)].epoch == lanes[WL(W, L)].epoch_there)
#define IS_OUT_UNDER(G, H, L)                                                                  \
    (grants[G].state == SENT && grants[G].handle == H && (grants[G].proven & BIT(L)) == 0 &&   \
     EPOCH_IN(grants[G].epochs, L) == lanes[WL((G) % WRITERS, L)].epoch)
#ifdef HANDLE_GOES_WITH_THE_ROOM
#define IS_TAKEN(G, H) (grants[G].state == SENT && grants[G].handle == H && !grants[G].counted_out)
#else
#define IS_TAKEN(G, H) (grants[G].state == SENT && grants[G].handle == H)
#endif
#define OWES(G, L) (grants[G].state == SENT && grants[G].closed && (grants[G].proven & BIT(L)) == 0)
#define LACKS(G) (grants[G].state == SENT && grants[G].proven == MASK && !grants[G].answered)
#define WAITS(G) (grants[G].state == QUEUED || (grants[G].state == SENT && !grants[G].answered))
#if GENERATIONS > 1
#define OWES_PROOF(W, L) (OWES(GW(0, W), L) || OWES(GW(1, W), L))
#define LACKS_ANSWER(W) (LACKS(GW(0, W)) || LACKS(GW(1, W)))
#else
#define OWES_PROOF(W, L) OWES(GW(0, W), L)
#define LACKS_ANSWER(W) LACKS(GW(0, W))
#endif
#if WRITERS > 1
#define BOOTSTRAPS (WAITS(GW(now, 0)) || WAITS(GW(now, 1)))
#else
#define BOOTSTRAPS WAITS(GW(now, 0))
#endif
#define ALL_WRITERS ((1 << WRITERS) - 1)

#ifdef REPEATS_ARE_READ
#define HEAR_AGAIN(FROM, KIND, NONCE, HANDLE, EPOCHS) FROM ? <KIND, NONCE, HANDLE, EPOCHS>
#define HEAR_AGAIN_SINK(FROM, KIND, NONCE, BROKEN) FROM ? <KIND, NONCE, BROKEN>
#define ENDS_THERE(W) skip
#define ENDS_HERE(W) skip
#else
#define HEAR_AGAIN(FROM, KIND, NONCE, HANDLE, EPOCHS) FROM ? KIND, NONCE, HANDLE, EPOCHS
#define HEAR_AGAIN_SINK(FROM, KIND, NONCE, BROKEN) FROM ? KIND, NONCE, BROKEN
#define ENDS_THERE(W) cut[W] = true; lose_there(W)
#define ENDS_HERE(W) lose(W)
#endif

#include "drain_core.pml"

proctype Peer(byte me)
{
    mtype kind;
    byte nonce;
    byte handle;
    byte epochs;
    byte broken;
end:
    do
    /* kvf_grants_admit and emit_sink: from here on it counts as sent */
    :: d_step {
           worker == ALIVE && phase == OPEN && grants[GW(now, me)].state == QUEUED && is_up[me] &&
               ARE_LANES_UP(me) ->
           pick_handle(me);
           grants[GW(now, me)].state = SENT;
           grants[GW(now, me)].handle = h;
           grants[GW(now, me)].epochs = EPOCHS_OF(me);
           to_writer[me] ! GRANT, now, h, grants[GW(now, me)].epochs
       }
    :: d_step { worker == ALIVE && is_up[me] && len(to_sink[me]) > 0 -> take_answer(me); skip }
    :: d_step {
           !frozen[me] && is_up_there[me] && len(to_writer[me]) > 0 ->
           to_writer[me] ? kind, nonce, handle, epochs;
           take_frame(me)
       }
#ifdef REPEATS
    /* A frame comes once more: its number was used. kvf_core_frame ends the connection. */
    :: d_step {
           !calm && faults > 0 && !frozen[me] && is_up_there[me] && len(to_writer[me]) > 0 ->
           faults--;
           HEAR_AGAIN(to_writer[me], kind, nonce, handle, epochs);
           take_frame(me);
           ENDS_THERE(me);
           skip
       }
    :: d_step {
           !calm && faults > 0 && worker == ALIVE && is_up[me] && len(to_sink[me]) > 0 ->
           faults--;
           HEAR_AGAIN_SINK(to_sink[me], kind, nonce, broken);
           act_on_answer(me);
           ENDS_HERE(me);
           skip
       }
#endif
#ifdef OLD_CONNECTION_IS_READ
    :: d_step {
           !frozen[me] && len(unread[me]) > 0 ->
           unread[me] ? kind, nonce, handle, epochs;
           take_frame(me)
       }
#endif
    /* kvf_core_peer_lost on either side; the liveness deadline if the other end is frozen */
    :: d_step { worker == ALIVE && is_up[me] && (cut[me] || frozen[me]) -> lose(me); skip }
    :: d_step { !frozen[me] && is_up_there[me] && cut[me] -> lose_there(me); skip }
    /* tick_cooperative: proven, and the one answer does not come */
    :: d_step { worker == ALIVE && is_up[me] && LACKS_ANSWER(me) -> lose(me); skip }
    /* kvf_core_peer_accept: what was unread of the old connection is thrown away first */
    :: d_step {
           worker == ALIVE && phase == OPEN && grants[GW(now, me)].state == QUEUED && !is_up[me] &&
               !frozen[me] ->
           lose_there(me);
           throw_away_frames(me);
           cut[me] = false;
           is_up[me] = true;
           is_up_there[me] = true
       }
    /* Thaws as it was. */
    :: d_step { frozen[me] && !calm -> frozen[me] = false }
    od
}

/* Larger worlds have one writer whose engine is always there and never aborts. */
#ifdef PLAIN_SECOND
#define DECIDES(W) ((W) == 0)
#else
#define DECIDES(W) true
#endif

/* One room of one writer, whose engine opens it when it likes, or never, and may abort it. */
proctype Source(byte me; byte mine)
{
    if
    :: DECIDES(me)
    :: else -> rooms[GW(mine, me)] = OPEN
    fi;
end:
    do
    :: d_step {
           !calm && !frozen[me] && rooms[GW(mine, me)] == NONE && mine <= now ->
           rooms[GW(mine, me)] = OPEN;
           if
           :: sources[GW(mine, me)].state == PARKED -> match(GW(mine, me))
           :: else
           fi;
           skip
       }
    :: d_step {
           !calm && !frozen[me] && rooms[GW(mine, me)] == OPEN && DECIDES(me) ->
           rooms[GW(mine, me)] = GONE;
           close_source(GW(mine, me), true);
           skip
       }
    :: d_step { MAY_MARK(GW(mine, me), 0) -> post_mark(GW(mine, me), 0); skip }
#if LANES > 1
    :: d_step { MAY_MARK(GW(mine, me), 1) -> post_mark(GW(mine, me), 1); skip }
#endif
    od
}

#ifdef FENCE_RETURNS_BEFORE_DESTROY
bool is_told[WRITERS * LANES];
#endif

proctype Lane(byte me; byte mine)
{
    mtype kind;
    byte handle;
    byte whose;
end:
    do
    :: LANDS_WRONG(me, mine, 0) -> assert(owner[me] == 0)
#if GENERATIONS > 1
    :: LANDS_WRONG(me, mine, 1) -> assert(owner[me] == 1)
#endif
    /* A marker arrives, and so has what was posted before it. */
    :: d_step {
           worker == ALIVE && lanes[WL(me, mine)].state == UP && len(marks[WL(me, mine)]) > 0 ->
           marks[WL(me, mine)] ? kind, handle, whose;
           l = mine;
#ifndef LANES_REORDER
           flight[GW(whose, me)] = flight[GW(whose, me)] & ~BIT(mine);
           flight_handle[GW(whose, me)] =
               (flight[GW(whose, me)] == 0 -> 0 : flight_handle[GW(whose, me)]);
#endif
           take_marker(me);
           kind = 0;
           handle = 0;
           whose = 0
       }
    /* On a broken lane it may be lost, and so may all behind it. */
    :: d_step {
           lanes[WL(me, mine)].broken && len(marks[WL(me, mine)]) > 0 ->
           do
           :: len(marks[WL(me, mine)]) > 0 -> marks[WL(me, mine)] ? _, _, _
           :: else -> break
           od;
           skip
       }
    /* tick_cooperative: the deadline orders a fence and proves nothing */
    :: d_step {
           worker == ALIVE && lanes[WL(me, mine)].state == UP && OWES_PROOF(me, mine) ->
#ifdef TIMER_FREES
           grants[GW(now, me)].counted_out = true;
           try_drain();
#else
           start_fence(me, mine);
#endif
           skip
       }
    /* kvf_core_lane_lost: a stream tells, a queue pair does not. */
    :: d_step {
           worker == ALIVE && lanes[WL(me, mine)].state == UP && lanes[WL(me, mine)].broken && !calm ->
           start_fence(me, mine);
           skip
       }
    /* The transport's fence returns: to ERR, reaped, destroyed. Then kvf_core_lane_fenced. */
#ifdef FENCE_RETURNS_BEFORE_DESTROY
    :: d_step {
           worker == ALIVE && lanes[WL(me, mine)].state == FENCING && !is_told[WL(me, mine)] ->
           is_told[WL(me, mine)] = true;
           l = mine;
           prove_fenced(me);
           skip
       }
    :: d_step {
           lanes[WL(me, mine)].state == FENCING && is_told[WL(me, mine)] ->
           is_told[WL(me, mine)] = false;
           destroy(me, mine);
           skip
       }
#else
    :: d_step {
           worker == ALIVE && lanes[WL(me, mine)].state == FENCING ->
           destroy(me, mine);
           l = mine;
           prove_fenced(me);
           skip
       }
#endif
    :: d_step {
           worker == ALIVE && lanes[WL(me, mine)].state == FENCING && faults > 0 && !calm ->
           faults--;
           lanes[WL(me, mine)].state = HUNG
       }
    /* KVF_ACT_ESCALATE: a fence that misses its deadline ends the worker. */
    :: d_step { worker == ALIVE && lanes[WL(me, mine)].state == HUNG -> worker = DYING }
    /* kvf_core_lane_accept and kvf_lane_confirmed: both ends begin an epoch. */
    :: d_step {
           worker == ALIVE && lanes[WL(me, mine)].state == DOWN && phase == OPEN &&
               grants[GW(now, me)].state == QUEUED && is_up[me] && is_up_there[me] && !cut[me] &&
               !frozen[me] && lanes[WL(me, mine)].there == DOWN ->
           assert(lanes[WL(me, mine)].epoch < 15);
           lanes[WL(me, mine)].epoch++;
           lanes[WL(me, mine)].epoch_there = lanes[WL(me, mine)].epoch;
           lanes[WL(me, mine)].state = UP;
           lanes[WL(me, mine)].there = UP;
           lanes[WL(me, mine)].broken = false
       }
    /* The writer hears of it: an error completion, or a stream that ended. */
    :: d_step {
           !frozen[me] && lanes[WL(me, mine)].there == UP &&
               (lanes[WL(me, mine)].broken || lanes[WL(me, mine)].state != UP ||
                lanes[WL(me, mine)].epoch != lanes[WL(me, mine)].epoch_there) ->
           l = mine;
           lane_dead_there(me);
           skip
       }
    od
}

/* ---- engine, supervisor, fate --------------------------------------------------------------------------------- */

inline open_room()
{
    if
    :: phase == DRAINED -> now++
    :: else
    fi;
    phase = OPEN;
    i = 0;
    do
    :: i < WRITERS ->
        assert(owner[i] == IDLE);
        owner[i] = now;
        grants[GW(now, i)].state = QUEUED;
        i++
    :: else -> break
    od
}

proctype Engine()
{
end:
    do
    :: d_step {
           worker == ALIVE && !is_engine_gone &&
               (phase == FREE || (phase == DRAINED && now + 1 < GENERATIONS)) ->
           open_room();
           skip
       }
    :: d_step { worker == ALIVE && phase == OPEN && !calm -> close_room(FAILED); skip }
    /* tick_bootstrap */
    :: d_step { worker == ALIVE && phase == OPEN && BOOTSTRAPS -> close_room(FAILED); skip }
#ifdef LEASES
    /* kvf_lease: refused once the room is closed. */
    :: d_step {
           phase == OPEN && copy == NO_COPY && !calm && !is_engine_gone ->
           copy = COPYING;
           copy_of = now
       }
    /* The copy writes, whether its engine lives or not, and comes back if it does. */
    :: copy == COPYING && owner[0] != copy_of -> assert(owner[0] == copy_of)
    :: d_step {
           copy == COPYING && worker == ALIVE && !is_engine_gone ->
           copy = COPIED;
           try_drain();
           skip
       }
    :: d_step {
           worker == ALIVE && !is_engine_gone && faults > 0 && !calm && phase != FREE ->
           faults--;
           is_engine_gone = true;
           close_room(FAILED);
           skip
       }
#endif
    od
}

/* The next worker knows no grant and has no lane. */
inline begin_worker()
{
    w = 0;
    do
    :: w < WRITERS ->
        is_up[w] = false;
        cut[w] = true;
        g = 0;
        do
        :: g < GENERATIONS ->
            forget(GW(g, w));
            grants[GW(g, w)].counted_out = true;
            g++
        :: else -> break
        od;
        h = 0;
        do
        :: h < LANES -> destroy(w, h); h++
        :: else -> break
        od;
        w++
    :: else -> break
    od;
    g = now + 1;
    do
    :: g < GENERATIONS ->
        w = 0;
        do
        :: w < WRITERS -> grants[GW(g, w)].counted_out = false; w++
        :: else -> break
        od;
        g++
    :: else -> break
    od
}

proctype Supervisor()
{
end:
    do
    :: d_step { worker == ALIVE && phase != FREE && faults > 0 && !calm -> faults--; worker = DYING }
#ifdef HANG_UP_IS_PROOF
    :: d_step {
           worker == DYING && (phase == OPEN || phase == CLOSING) ->
           publish_drained();
           skip
       }
#endif
    /* kvf_sup_worker_ended: it is reaped, and its lanes are destroyed with it. kvf_reap_room. */
    :: d_step {
           worker == DYING ->
           begin_worker();
           if
           :: phase == OPEN -> phase = CLOSING; outcome = FAILED; fixed = FAILED
           :: else
           fi;
#ifdef REAP_LOOKS_AT_NO_WORD
           publish_drained();
#else
           try_drain(); /* WORKER_GONE, unless a lease is out */
#endif
           worker = ALIVE
       }
    od
}

/* Writers are alike: the first has the faults of writers. */
proctype Fate()
{
end:
    do
    :: d_step { !calm && phase != FREE && faults > 0 && is_up[0] && !cut[0] -> faults--; cut[0] = true }
    :: d_step { !calm && phase != FREE && faults > 0 && !frozen[0] -> faults--; frozen[0] = true }
    :: d_step {
           !calm && phase != FREE && faults > 0 && lanes[WL(0, 0)].state == UP && !lanes[WL(0, 0)].broken ->
           faults--;
           lanes[WL(0, 0)].broken = true
       }
    /* Gone: nothing is left of it but what is in flight. It comes back empty. */
    :: d_step {
           !calm && phase != FREE && faults > 0 && !frozen[0] ->
           faults--;
           frozen[0] = true;
           is_up_there[0] = false;
           cut[0] = true;
           g = 0;
           do
           :: g < GENERATIONS ->
               forget_source(GW(g, 0));
               rooms[GW(g, 0)] = (rooms[GW(g, 0)] == NONE -> NONE : GONE);
               g++
           :: else -> break
           od;
           h = 0;
           do
           :: h < LANES -> lanes[WL(0, h)].there = DOWN; h++
           :: else -> break
           od;
           skip
       }
    :: d_step { !calm && phase != FREE -> calm = true }
    od
}

/* When nothing can happen any more. */
proctype Judge()
{
    atomic {
        timeout ->
        /* Every room is drained, or in plain sight. */
        assert(phase == QUARANTINED || (phase == DRAINED && (now + 1 == GENERATIONS || is_engine_gone)));
        w = 0;
        do
        :: w < WRITERS ->
            g = 0;
            do
            :: g < GENERATIONS ->
                assert(grants[GW(g, w)].state == NONE); /* handles and credits are back */
                assert(frozen[w] || sources[GW(g, w)].state == NONE); /* no writer waits */
                g++
            :: else -> break
            od;
            w++
        :: else -> break
        od;
        is_judged = true;
#ifdef PROBE_JUDGE
        assert(phase != DRAINED);
#endif
#ifdef PROBE_QUARANTINE
        assert(phase != QUARANTINED);
#endif
        skip
    }
}

init
{
    atomic {
        i = 0;
        do
        :: i < WRITERS ->
            owner[i] = IDLE;
            is_up[i] = true;
            is_up_there[i] = true;
            lanes[WL(i, 0)].state = UP;
            lanes[WL(i, 0)].there = UP;
            lanes[WL(i, 0)].epoch = 1;
            lanes[WL(i, 0)].epoch_there = 1;
#if LANES > 1
            lanes[WL(i, 1)].state = UP;
            lanes[WL(i, 1)].there = UP;
            lanes[WL(i, 1)].epoch = 1;
            lanes[WL(i, 1)].epoch_there = 1;
            run Lane(i, 1);
#endif
            run Peer(i);
            run Lane(i, 0);
            run Source(i, 0);
#if GENERATIONS > 1
            run Source(i, 1);
#endif
            i++
        :: else -> break
        od;
        i = 0;
        run Engine();
        run Supervisor();
        run Fate();
        run Judge()
    }
}
