/* A new grant after a fence: one sink, one source, a room striped over two lanes, REGRANTS new grants. What is
 * posted lies in its lane for as long as it likes and lands without asking anybody, until its marker has come
 * behind it or the sink has destroyed the lane. After the loss of a lane what the source had not handed over
 * goes on as filler. Once the room reads as ended its page belongs to somebody else. drain.pml has the rest
 * of the protocol, with rooms that fail when a lane of theirs is fenced. */
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef REGRANTS
#define REGRANTS 1
#endif
#define GRANTS (REGRANTS + 1)
#define GL(g, l) ((g) * 2 + (l))
#define BIT(l) (1 << (l))
#define BOTH 3

#define NOTHING 0
#define RIGHT 1
#define FILLER 2

#define NO_MARK 0
#define END 1
#define DRAIN 2

#define OPEN 0
#define CLOSING 1
#define SUCCESS 2
#define FAILED 3

/* The sink. */
byte phase = OPEN;
byte now = 0;     /* the current grant */
byte proven = 0;  /* its lanes */
byte ended = 0;   /* ... by END */
bool sent = false, answered = false, retired = false, owes_abort = false;
byte epoch[2] = 1;
bool is_up[2] = true, is_fencing[2] = false;
byte faults = 0;

/* The source: its side of each grant. */
#define UNSEEN 0
#define ACTIVE 1
#define LOST 2
#define OVER 3
byte side[GRANTS] = UNSEEN;
bool is_there[2] = true; /* its ends of the lanes */
byte posted = 0;         /* lanes of the current grant with data */
byte marked = 0;
bool is_source_gone = false; /* its room ended: in success, as far as it knows */

/* Control frames under way, in order, one of a kind at a time. */
bool grant_there = false, abort_there = false, accept_there = false, decline_there = false, hint_there = false;

/* The lanes: what of each grant may land, the marker behind it, and the epoch they are of. */
byte data[4] = NOTHING;
byte mark[4] = NO_MARK;
byte of_epoch[4] = 0;
byte page[2] = NOTHING;

#define IS_ENDED (phase == SUCCESS || phase == FAILED)
#define IS_LANE_OK(l) (is_there[l] && is_up[l] && of_epoch[GL(now, l)] == epoch[l])

inline close_room()
{
    if
    :: phase == OPEN -> phase = CLOSING; owes_abort = sent
    :: else
    fi
}

/* Proven everywhere: the room of a current grant ends, that of a retired one goes on. */
inline try_end()
{
    if
    :: phase == OPEN && !retired && ended == BOTH ->
        phase = SUCCESS;
#ifdef PROBE_SUCCESS_AGAIN
        assert(now == 0)
#endif
    :: phase == CLOSING && (proven == BOTH || !sent) -> phase = FAILED
    :: else
    fi
}

/* kvf_grant_lane_lost */
inline start_fence(l)
{
    if
    :: is_up[l] && !is_fencing[l] ->
        is_fencing[l] = true;
        if
        :: sent && phase == OPEN && !retired && (proven & BIT(l)) == 0 ->
            if
            :: now < REGRANTS -> retired = true; owes_abort = true
            :: else -> close_room()
            fi
        :: else
        fi
    :: else
    fi
}

/* lose(): nothing more of this grant, DRAIN where no marker is yet, filler for what was not handed over. */
inline lose_there()
{
    side[now] = LOST;
    hint_there = true;
    data[GL(now, 0)] = (data[GL(now, 0)] == RIGHT && (marked & 1) == 0 -> FILLER : data[GL(now, 0)]);
    data[GL(now, 1)] = (data[GL(now, 1)] == RIGHT && (marked & 2) == 0 -> FILLER : data[GL(now, 1)])
}

inline land(i)
{
    assert(!IS_ENDED);
    page[(i) % 2] = data[i]
}

inline take_mark(i)
{
    if
    :: data[i] != NOTHING -> land(i)
    :: else
    fi;
    data[i] = NOTHING;
    if
    :: (i) / 2 == now && sent && (proven & BIT((i) % 2)) == 0 ->
        proven = proven | BIT((i) % 2);
        ended = (mark[i] == END -> ended | BIT((i) % 2) : ended);
        mark[i] = NO_MARK;
        if
        :: phase == OPEN && !retired && ended == BOTH -> assert(page[0] == RIGHT && page[1] == RIGHT)
        :: else
        fi;
        try_end()
    :: else -> mark[i] = NO_MARK
    fi
}

/* Nothing of its epoch can land any more. */
inline destroy(l)
{
    is_fencing[l] = false;
    is_up[l] = false;
    is_there[l] = false;
    g = 0;
    do
    :: g < GRANTS ->
        if
        :: of_epoch[GL(g, l)] == epoch[l] -> data[GL(g, l)] = NOTHING; mark[GL(g, l)] = NO_MARK
        :: else
        fi;
        g++
    :: else -> break
    od;
    g = 0;
    if
    :: side[now] == ACTIVE -> lose_there()
    :: else
    fi;
    if
    :: sent && of_epoch[GL(now, l)] == epoch[l] -> proven = proven | BIT(l)
    :: else
    fi;
#ifdef REGRANTS_BEFORE_PROOF
    if
    :: sent && retired -> proven = BOTH
    :: else
    fi;
#endif
    try_end()
}

active proctype World()
{
    byte g;
end_world:
    do
    /* The sink grants over lanes that are up. */
    :: atomic { phase == OPEN && !sent && is_up[0] && is_up[1] && !is_fencing[0] && !is_fencing[1] &&
                is_there[0] && is_there[1] ->
           sent = true; grant_there = true; answered = false; proven = 0; ended = 0;
           of_epoch[GL(now, 0)] = epoch[0]; of_epoch[GL(now, 1)] = epoch[1] }
    /* kvf_source_whole, match_again */
    :: atomic { grant_there && !abort_there ->
           grant_there = false; posted = 0; marked = 0;
           if
           :: is_source_gone || (now > 0 && side[now - 1] != LOST) -> decline_there = true
           :: else ->
               side[now] = ACTIVE; accept_there = true;
               if
               :: now > 0 -> side[now - 1] = OVER
               :: else
               fi
           fi }
    :: atomic { accept_there -> accept_there = false; answered = true }
    :: atomic { decline_there -> decline_there = false; answered = true; proven = BOTH; close_room();
                owes_abort = false; try_end() }
    /* Posts, and the marker as the last of them, on each lane by itself. */
    :: atomic { side[now] == ACTIVE && (posted & 1) == 0 && IS_LANE_OK(0) -> posted = posted | 1; data[GL(now, 0)] = RIGHT }
    :: atomic { side[now] == ACTIVE && (posted & 2) == 0 && IS_LANE_OK(1) -> posted = posted | 2; data[GL(now, 1)] = RIGHT }
    :: atomic { side[now] == ACTIVE && posted == BOTH && is_there[0] && is_there[1] ->
                mark[GL(now, 0)] = END; mark[GL(now, 1)] = END; marked = BOTH;
                if
                :: side[now] = OVER; is_source_gone = true /* the completions came */
                :: true
                fi }
    :: atomic { side[now] == LOST && (marked & 1) == 0 && is_there[0] && of_epoch[GL(now, 0)] == epoch[0] ->
                marked = marked | 1; mark[GL(now, 0)] = DRAIN }
    :: atomic { side[now] == LOST && (marked & 2) == 0 && is_there[1] && of_epoch[GL(now, 1)] == epoch[1] ->
                marked = marked | 2; mark[GL(now, 1)] = DRAIN }
#ifdef REPOSTS_UNDER_THE_OLD_GRANT
    /* The lane is back, and the source begins again where it was. */
    :: atomic { now == 0 && side[0] == LOST && is_there[0] && is_up[0] && epoch[0] > of_epoch[0] && data[0] == NOTHING ->
                of_epoch[0] = epoch[0]; data[0] = RIGHT }
#endif
    /* Anything lands, at any time and more than once. */
    :: atomic { data[0] != NOTHING -> land(0) }
    :: atomic { data[1] != NOTHING -> land(1) }
    :: atomic { data[2] != NOTHING -> land(2) }
    :: atomic { data[3] != NOTHING -> land(3) }
    /* A marker comes behind all data of its lane. */
    :: atomic { mark[0] != NO_MARK -> take_mark(0) }
    :: atomic { mark[1] != NO_MARK -> take_mark(1) }
    :: atomic { mark[2] != NO_MARK -> take_mark(2) }
    :: atomic { mark[3] != NO_MARK -> take_mark(3) }
    /* Faults: a lane breaks at either end. */
    :: atomic { faults < FAULTS && !IS_ENDED -> faults++; start_fence(0) }
    :: atomic { faults < FAULTS && !IS_ENDED -> faults++; start_fence(1) }
    :: atomic { faults < FAULTS && !IS_ENDED && side[now] == ACTIVE -> faults++; is_there[0] = false; lose_there() }
    :: atomic { faults < FAULTS && !IS_ENDED && side[now] == ACTIVE -> faults++; is_there[1] = false; lose_there() }
    /* ENDED: a hint. */
    :: atomic { hint_there -> hint_there = false;
                if
                :: !is_there[0] -> start_fence(0)
                :: else
                fi;
                if
                :: !is_there[1] -> start_fence(1)
                :: else
                fi }
    /* The fence returns. */
    :: atomic { is_fencing[0] -> destroy(0) }
    :: atomic { is_fencing[1] -> destroy(1) }
    :: atomic { !is_up[0] && !is_fencing[0] && epoch[0] < 3 && !IS_ENDED -> epoch[0]++; is_up[0] = true; is_there[0] = true }
    :: atomic { !is_up[1] && !is_fencing[1] && epoch[1] < 3 && !IS_ENDED -> epoch[1]++; is_up[1] = true; is_there[1] = true }
    /* The cooperative deadline of a retired or closed grant: it fences what still owes. */
    :: atomic { sent && (retired || phase == CLOSING) && (proven & 1) == 0 -> start_fence(0) }
    :: atomic { sent && (retired || phase == CLOSING) && (proven & 2) == 0 -> start_fence(1) }
    /* ABORT: come again, or not. */
    :: atomic { owes_abort && !abort_there -> owes_abort = false; abort_there = true }
    :: atomic { abort_there && !grant_there -> abort_there = false;
                if
                :: side[now] == ACTIVE -> lose_there()
                :: else
                fi }
    /* kvf_grant_renew */
    :: atomic { phase == OPEN && sent && retired && proven == BOTH && answered && !owes_abort && !abort_there ->
                retired = false; sent = false; now++ }
    /* The engine aborts, at any time. */
    :: atomic { phase == OPEN -> close_room(); try_end() }
    od
}
