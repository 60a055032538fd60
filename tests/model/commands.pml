/* The command ring: kvf_spsc of two slots, arena records behind some commands, a worker that sleeps.
 * Five commands wrap the ring twice. The worker sleeps without the cap that the daemon has, and its
 * eventfd is edge-triggered and never read: whoever is lost here is lost for ever. */
#define THREADS 2
#define ADDRESSES 7
#include "memory.pml"

#define ENGINE 0
#define WORKER 1

#define SLOTS 2
#define COMMANDS 5
#define SEQ(p) ((p) % SLOTS)
#define PAYLOAD(p) (SLOTS + (p) % SLOTS)
#define RECORD 4 /* an arena with place for one record */
#define CONSUMED 5
#define SLEEPING 6
#define HAS_RECORD(p) ((p) % 3 == 0)

#ifdef PUSH_ONLY_RELEASES
#define PUSH_ORDER RELEASE
#elif defined(PUSH_IS_RELAXED)
#define PUSH_ORDER RELAXED
#else
#define PUSH_ORDER SEQ_CST
#endif
#ifdef FLAG_ONLY_RELEASES
#define FLAG_ORDER RELEASE
#else
#define FLAG_ORDER SEQ_CST
#endif

bool bell;      /* an edge of the doorbell that epoll has not reported */
byte taken = 0; /* commands the worker has handled */

proctype Engine()
{
    byte pos = 0;
    byte last_record = 0;
    do
    :: pos < COMMANDS ->
        if
        :: HAS_RECORD(pos) ->
            /* C3: the place of the former record is free again. */
            MAY_LOAD(ENGINE) && (pos == 0 || LOAD(ENGINE, CONSUMED) > last_record);
            store(ENGINE, RECORD, pos + 1, RELAXED);
            last_record = pos
        :: else
        fi;
        /* C2: the slot is free. A full ring answers -EAGAIN and the engine tries again. */
        MAY_LOAD(ENGINE) && LOAD(ENGINE, SEQ(pos)) == pos;
        store(ENGINE, PAYLOAD(pos), pos + 1, RELAXED);
        store(ENGINE, SEQ(pos), pos + 1, PUSH_ORDER); /* C1, D1 */
        pos++;
        if
        :: IS_CLEAR(ENGINE) && LOAD(ENGINE, SLEEPING) == 1 -> bell = true /* D1 */
        :: IS_CLEAR(ENGINE) && LOAD(ENGINE, SLEEPING) == 0
        fi
    :: else -> break
    od
}

/* One command: what kvf_spsc_pop and copy_record do. */
inline take_command()
{
#ifdef SLOT_BACK_FIRST
    store(WORKER, SEQ(pos), pos + SLOTS, RELEASE);
    MAY_LOAD(WORKER);
#endif
#ifdef PAYLOAD_BEFORE_SEQ
    skip;
#else
    payload = LOAD(WORKER, PAYLOAD(pos));
#endif
    assert(payload == pos + 1); /* neither lost, nor doubled, nor torn */
    payload = 0;
#ifndef SLOT_BACK_FIRST
    store(WORKER, SEQ(pos), pos + SLOTS, RELEASE); /* C2 */
#endif
#ifdef CONSUMED_FIRST
    store(WORKER, CONSUMED, pos + 1, RELEASE);
#endif
    if
    :: HAS_RECORD(pos) ->
        assert(LOAD(WORKER, RECORD) == pos + 1) /* the record of this command, whole */
    :: else
    fi;
    pos++;
#ifndef CONSUMED_FIRST
    store(WORKER, CONSUMED, pos, RELEASE); /* C3 */
#endif
    taken = pos
}

proctype Worker()
{
    byte pos = 0;
    byte payload = 0;
    do
    :: bell = false; /* epoll_wait reports the edge, before the ring is looked at */
#ifdef PAYLOAD_BEFORE_SEQ
        payload = LOAD(WORKER, PAYLOAD(pos));
#endif
        if
        :: MAY_LOAD(WORKER) && LOAD(WORKER, SEQ(pos)) == pos + 1 -> take_command() /* C1 */
        :: MAY_LOAD(WORKER) && LOAD(WORKER, SEQ(pos)) != pos + 1 ->
            payload = 0;
            store(WORKER, SLEEPING, 1, FLAG_ORDER); /* D1 */
#ifdef SLEEPS_WITHOUT_A_LOOK
end_blind:  bell;
#else
            if
            :: IS_CLEAR(WORKER) && LOAD(WORKER, SEQ(pos)) == pos + 1
            :: IS_CLEAR(WORKER) && LOAD(WORKER, SEQ(pos)) != pos + 1 ->
end_asleep:     bell
            fi;
#endif
            store(WORKER, SLEEPING, 0, RELAXED)
        fi
    od
}

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

/* No command is lost and no wake-up: whatever the worker was about to do, it takes all of them. */
ltl all_taken { <> (taken == COMMANDS) }
