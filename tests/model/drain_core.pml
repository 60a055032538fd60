/* What the cores of drain.pml do with an event: the sink's gate and grants, a writer's grants, the answers
 * between them. Steps that call these are in drain.pml. */

/* ---- the gate ------------------------------------------------------------------------------------------------ */

/* The only place that publishes drained: from here on the engine may hand the pages out. */
inline publish_drained()
{
    assert(phase != DRAINED); /* a drained word stays */
    assert(outcome == fixed); /* what it was at the close */
#ifdef PROBE_SUCCESS
    assert(!(outcome == SUCCESS && now + 1 == GENERATIONS && faults == 0));
#endif
    phase = DRAINED;
    outcome = NO_OUTCOME;
    fixed = NO_OUTCOME;
    landed = 0;
    x = 0;
    do
    :: x < WRITERS -> owner[x] = IDLE; x++
    :: else -> break
    od
}

#define LEASED (copy == COPYING && copy_of == now)

/* kvf_room_try_drain */
inline try_drain()
{
    x = 0;
    do
    :: x < WRITERS && grants[GW(now, x)].counted_out -> x++
    :: else -> break
    od;
    if
#ifdef DRAINED_BEFORE_LEASES
    :: phase == CLOSING && x == WRITERS -> publish_drained()
#else
    :: phase == CLOSING && x == WRITERS && !LEASED -> publish_drained()
#endif
    :: phase == CLOSING && LEASED && is_engine_gone -> phase = QUARANTINED
    :: else
    fi
}

/* kvf_grant_forget: the handle may be given out again */
inline forget(G)
{
    grants[G].state = NONE;
    grants[G].handle = 0;
    grants[G].epochs = 0;
    grants[G].proven = 0;
    grants[G].ended = 0;
    grants[G].answered = false;
    grants[G].closed = false;
    grants[G].told_abort = false
}

/* What emit_abort writes once. */
inline tell_abort(G)
{
    if
    :: is_up[(G) % WRITERS] && !grants[G].answered && !grants[G].told_abort ->
        to_writer[(G) % WRITERS] ! ABORT, (G) / WRITERS, 0, 0;
        grants[G].told_abort = true
    :: is_up[(G) % WRITERS] && grants[G].answered && !grants[G].told_abort && grants[G].proven != MASK ->
        to_writer[(G) % WRITERS] ! ABORT, (G) / WRITERS, 0, 0;
        grants[G].told_abort = true
    :: else
    fi
}

/* kvf_grant_close */
inline close_grant(G)
{
    if
    :: grants[G].state == QUEUED -> grants[G].counted_out = true; forget(G) /* NEVER_POSTED */
    :: grants[G].state == SENT && !grants[G].closed ->
        grants[G].closed = true;
        if
        :: grants[G].proven != MASK ->
            tell_abort(G);
#ifdef CHECKED
            grants[G].counted_out = true /* REVOKED */
#elif defined(NO_ACCEPT_IS_NEVER_POSTED)
            grants[G].counted_out = grants[G].counted_out || !grants[G].answered
#endif
        :: else
        fi
    :: else
    fi
}

/* kvf_room_close: the outcome is fixed here */
inline close_room(o)
{
    if
    :: phase == OPEN ->
        phase = CLOSING;
        outcome = o;
        fixed = o;
        i = 0;
        do
        :: i < WRITERS -> close_grant(GW(now, i)); i++
        :: else -> break
        od
    :: else
    fi;
    try_drain()
}

/* kvf_grant_prove for lane l, and grant_proven */
inline prove(G)
{
    grants[G].proven = grants[G].proven | BIT(l);
#ifdef ONE_LANE_IS_ENOUGH
    grants[G].counted_out = true;
#endif
    if
    :: grants[G].proven == MASK ->
        grants[G].closed = true;
        grants[G].counted_out = true;
        if
        :: grants[G].ended == MASK && (G) / WRITERS == now && phase != DRAINED ->
            landed = landed | BIT((G) % WRITERS);
            if
            :: landed == ALL_WRITERS && phase == OPEN -> close_room(SUCCESS)
#ifdef LATE_END_IS_SUCCESS
            :: landed == ALL_WRITERS && phase == CLOSING -> outcome = SUCCESS
#endif
            :: else
            fi
        :: grants[G].ended != MASK -> tell_abort(G) /* await_answer */
        :: else
        fi;
        if
        :: grants[G].answered -> forget(G)
        :: else
        fi
    :: else
    fi;
    try_drain()
}

/* kvf_lane_start_fence, and close_rooms_of */
inline start_fence(W, L)
{
    if
    :: lanes[WL(W, L)].state == UP ->
        lanes[WL(W, L)].state = FENCING;
        if
        :: grants[GW(now, W)].state == SENT && (grants[GW(now, W)].proven & BIT(L)) == 0 ->
            close_room(FAILED)
        :: else
        fi
    :: else
    fi
}

/* kvf_core_lane_fenced: FENCED for every grant that is out on this lane and epoch */
inline prove_fenced(W)
{
    g = 0;
    do
    :: g < GENERATIONS ->
        if
        :: grants[GW(g, W)].state == SENT && (grants[GW(g, W)].proven & BIT(l)) == 0 &&
               EPOCH_IN(grants[GW(g, W)].epochs, l) == lanes[WL(W, l)].epoch ->
            prove(GW(g, W));
            if
            :: g == now -> close_room(FAILED)
            :: else
            fi
        :: else
        fi;
        g++
    :: else -> break
    od
}

/* The queue pair or stream of this epoch is no more, nor is anything that lies in it. */
inline destroy(W, L)
{
    lanes[WL(W, L)].state = DOWN;
    do
    :: len(marks[WL(W, L)]) > 0 -> marks[WL(W, L)] ? _, _, _
    :: else -> break
    od;
    x = 0;
    do
    :: x < GENERATIONS ->
        flight[GW(x, W)] = flight[GW(x, W)] & ~BIT(L);
        flight_handle[GW(x, W)] = (flight[GW(x, W)] == 0 -> 0 : flight_handle[GW(x, W)]);
        x++
    :: else -> break
    od
}

/* ---- a writer's core -------------------------------------------------------------------------------------- */

inline forget_source(G)
{
    sources[G].state = NONE;
    sources[G].handle = 0;
    sources[G].epochs = 0;
    sources[G].marked = 0;
    sources[G].marks_done = 0;
    sources[G].dead = 0;
    sources[G].is_closing = false
}

inline tell(KIND, G, BROKEN)
{
    if
    :: is_up_there[(G) % WRITERS] -> to_sink[(G) % WRITERS] ! KIND, (G) / WRITERS, BROKEN
    :: else
    fi
}

/* kvf_source_decline: nothing of it was or will be posted */
inline decline(G)
{
    tell(DECLINE, G, 0);
    forget_source(G)
}

/* kvf_source_try_end; the room of one sink ends with its grant */
inline try_end(G)
{
    if
    :: sources[G].state == ACTIVE && (sources[G].marks_done | sources[G].dead) == MASK ->
        rooms[G] = GONE;
        forget_source(G)
    :: else
    fi
}

/* kvf_source_close: DRAIN follows on every lane that has no marker yet and is not dead */
inline close_source(G, IS_TOLD)
{
    if
    :: sources[G].state == ACTIVE && !sources[G].is_closing ->
        sources[G].is_closing = true;
        rooms[G] = GONE;
        if
        :: IS_TOLD -> tell(ENDED, G, sources[G].dead)
        :: else
        fi
    :: else
    fi
}

/* kvf_source_lane_dead for every grant on lane l: no marker goes there any more */
inline lane_dead_there(W)
{
    lanes[WL(W, l)].there = DOWN;
    g = 0;
    do
    :: g < GENERATIONS ->
        if
        :: sources[GW(g, W)].state == ACTIVE && (sources[GW(g, W)].dead & BIT(l)) == 0 &&
               EPOCH_IN(sources[GW(g, W)].epochs, l) == lanes[WL(W, l)].epoch_there ->
            sources[GW(g, W)].dead = sources[GW(g, W)].dead | BIT(l);
            if
            :: (sources[GW(g, W)].marks_done & BIT(l)) == 0 -> close_source(GW(g, W), true)
            :: else
            fi;
            try_end(GW(g, W))
        :: else
        fi;
        g++
    :: else -> break
    od
}

/* lose_grants_in; its own ends of the lanes are fenced too */
inline lose_there(W)
{
    if
    :: is_up_there[W] ->
        is_up_there[W] = false;
        g = 0;
        do
        :: g < GENERATIONS ->
            if
            :: sources[GW(g, W)].state == PARKED -> forget_source(GW(g, W))
            :: else -> close_source(GW(g, W), false)
            fi;
            g++
        :: else -> break
        od;
        l = 0;
        do
        :: l < LANES ->
            if
            :: lanes[WL(W, l)].there == UP -> lane_dead_there(W)
            :: else
            fi;
            l++
        :: else -> break
        od
    :: else
    fi
}

/* match, then kvf_source_next_data: one answer; a post on every lane of the mask */
inline match(G)
{
    if
    :: ARE_LANES_THERE((G) % WRITERS, sources[G].epochs) ->
        sources[G].state = ACTIVE;
        tell(ACCEPT, G, 0);
        x = 0;
        do
        :: x < LANES ->
            if
            :: REACHES_SINK((G) % WRITERS, x) ->
                flight[G] = flight[G] | BIT(x);
                flight_handle[G] = sources[G].handle
            :: else
            fi;
            x++
        :: else -> break
        od
    :: else ->
        rooms[G] = GONE;
        decline(G)
    fi
}

/* kvf_source_whole and kvf_source_aborted */
inline take_frame(W)
{
    if
    :: kind == GRANT ->
        sources[GW(nonce, W)].handle = handle;
        sources[GW(nonce, W)].epochs = epochs;
        if
        :: rooms[GW(nonce, W)] == OPEN -> match(GW(nonce, W))
        :: rooms[GW(nonce, W)] == GONE -> decline(GW(nonce, W))
        :: else -> sources[GW(nonce, W)].state = PARKED
        fi
    :: kind == ABORT && sources[GW(nonce, W)].state == PARKED -> decline(GW(nonce, W))
    :: kind == ABORT && sources[GW(nonce, W)].state == ACTIVE -> close_source(GW(nonce, W), false)
    :: else /* nobody's any more */
    fi;
    kind = 0;
    nonce = 0;
    handle = 0;
    epochs = 0
}

/* kvf_source_next_mark */
inline post_mark(G, L)
{
    sources[G].marked = sources[G].marked | BIT(L);
    if
    :: lanes[WL((G) % WRITERS, L)].state == UP && REACHES_SINK((G) % WRITERS, L) ->
        if
        :: !sources[G].is_closing && sources[G].dead == 0 ->
            marks[WL((G) % WRITERS, L)] ! END, sources[G].handle, (G) / WRITERS
        :: else -> marks[WL((G) % WRITERS, L)] ! DRAIN, sources[G].handle, (G) / WRITERS
        fi
    :: else /* into a lane whose other end is gone */
    fi
}
#define MAY_MARK(G, L)                                                                         \
    (!frozen[(G) % WRITERS] && sources[G].state == ACTIVE &&                                   \
     ((sources[G].dead | sources[G].marked) & BIT(L)) == 0 && nfull(marks[WL((G) % WRITERS, L)]))

/* ---- the sink's core ---------------------------------------------------------------------------------------- */

/* lose, lose_grants_out: what is out on the connection is answered by its loss, and its lanes are fenced. */
inline lose(W)
{
    is_up[W] = false;
    cut[W] = true;
    g = 0;
    do
    :: g < GENERATIONS ->
        if
        :: grants[GW(g, W)].state == SENT ->
            grants[GW(g, W)].answered = true;
#ifdef LOSS_IS_PROOF
            grants[GW(g, W)].counted_out = true;
#endif
            if
            :: g == now -> close_room(FAILED)
            :: else
            fi;
            if
            :: grants[GW(g, W)].proven == MASK -> forget(GW(g, W))
            :: else
            fi
        :: else
        fi;
        g++
    :: else -> break
    od;
    h = 0;
    do
    :: h < LANES -> start_fence(W, h); h++
    :: else -> break
    od
}

/* grant_on_lane: the newest grant with this handle that is out on lane l; GENERATIONS if there is none. */
inline find_by_handle(W, H)
{
#if GENERATIONS > 1
    g = (IS_OUT_UNDER(GW(1, W), H, l) -> 1 : (IS_OUT_UNDER(GW(0, W), H, l) -> 0 : GENERATIONS))
#else
    g = (IS_OUT_UNDER(GW(0, W), H, l) -> 0 : GENERATIONS)
#endif
}

inline pick_handle(W)
{
#if GENERATIONS > 1
    h = (IS_TAKEN(GW(0, W), 0) || IS_TAKEN(GW(1, W), 0) -> 1 : 0);
    assert(!IS_TAKEN(GW(0, W), h) && !IS_TAKEN(GW(1, W), h))
#else
    h = 0
#endif
}

/* THE claim: what lands, lands in a page of the room that it was posted for. With checked placement the
 * worker places, and asks kvf_core_place before every receive. The step is possible only where it is wrong. */
#define IS_WRONG_PAGE(W, WHOSE) (owner[W] != (WHOSE))
#ifdef CHECKED
#ifdef PLACE_IGNORES_THE_CLOSE
#define IS_PLACED(G, H, L) IS_OUT_UNDER(G, H, L)
#else
#define IS_PLACED(G, H, L) (IS_OUT_UNDER(G, H, L) && !grants[G].counted_out)
#endif
#define IS_TAKEN_IN(W, L) (worker == ALIVE && lanes[WL(W, L)].state == UP)
#else
#define IS_PLACED(G, H, L) true
#define IS_TAKEN_IN(W, L) (lanes[WL(W, L)].state != DOWN)
#endif
#if GENERATIONS > 1
#define IS_PLACED_BY_HANDLE(W, H, L)                                                           \
    (IS_OUT_UNDER(GW(1, W), H, L) -> IS_PLACED(GW(1, W), H, L) : IS_PLACED(GW(0, W), H, L))
#else
#define IS_PLACED_BY_HANDLE(W, H, L) IS_PLACED(GW(0, W), H, L)
#endif
#define LANDS_WRONG(W, L, WHOSE)                                                               \
    ((flight[GW(WHOSE, W)] & BIT(L)) && IS_TAKEN_IN(W, L) && IS_WRONG_PAGE(W, WHOSE) &&        \
     IS_PLACED_BY_HANDLE(W, flight_handle[GW(WHOSE, W)], L))

/* kvf_core_marker */
inline take_marker(W)
{
    find_by_handle(W, handle);
    if
    :: g == GENERATIONS -> start_fence(W, l) /* -EPROTO: the stream must end */
    :: else ->
        assert(g == whose); /* a marker proves its own grant and no other */
        if
        :: kind == END -> grants[GW(g, W)].ended = grants[GW(g, W)].ended | BIT(l)
        :: else
        fi;
        prove(GW(g, W));
        if
        :: kind == DRAIN && g == now -> close_room(FAILED)
        :: else
        fi
    fi;
    /* Its completion goes back to who posted it. */
    if
    :: lanes[WL(W, l)].there == UP && REACHES_SINK(W, l) && !lanes[WL(W, l)].broken &&
           sources[GW(whose, W)].state == ACTIVE ->
        sources[GW(whose, W)].marks_done = sources[GW(whose, W)].marks_done | BIT(l);
        try_end(GW(whose, W))
    :: else
    fi
}

inline take_decline(W)
{
    /* NEVER_POSTED, and it is true. */
    assert(sources[GW(nonce, W)].state == NONE && flight[GW(nonce, W)] == 0);
    grants[GW(nonce, W)].answered = true;
    grants[GW(nonce, W)].closed = true;
    if
    :: nonce == now -> close_room(FAILED)
    :: else
    fi;
    l = 0;
    do
    :: l < LANES ->
        if
        :: grants[GW(nonce, W)].state == SENT && (grants[GW(nonce, W)].proven & BIT(l)) == 0 ->
            prove(GW(nonce, W))
        :: else
        fi;
        l++
    :: else -> break
    od;
    if
    :: grants[GW(nonce, W)].state == SENT -> forget(GW(nonce, W))
    :: else
    fi
}

/* kvf_grant_ended: a hint; the lanes it names are fenced */
inline take_ended(W)
{
#ifdef ERROR_IS_PROOF
    grants[GW(nonce, W)].counted_out = true;
#endif
    if
    :: nonce == now -> close_room(FAILED)
    :: else
    fi;
    h = 0;
    do
    :: h < LANES ->
        if
        :: (broken & BIT(h)) && grants[GW(nonce, W)].state == SENT &&
               (grants[GW(nonce, W)].proven & BIT(h)) == 0 ->
            start_fence(W, h)
        :: else
        fi;
        h++
    :: else -> break
    od
}

/* on_answer */
inline take_answer(W)
{
    to_sink[W] ? kind, nonce, broken;
    act_on_answer(W)
}

inline act_on_answer(W)
{
#ifdef NONCE_IS_NOT_CHECKED
    if
    :: grants[GW(now, W)].state == SENT && !grants[GW(now, W)].answered -> nonce = now
    :: else
    fi;
#endif
    if
    :: grants[GW(nonce, W)].state != SENT /* stale: counted and dropped */
    :: grants[GW(nonce, W)].state == SENT && kind == ACCEPT ->
        grants[GW(nonce, W)].answered = true;
        if
        :: grants[GW(nonce, W)].proven == MASK -> forget(GW(nonce, W))
        :: else
        fi
    :: grants[GW(nonce, W)].state == SENT && kind == DECLINE -> take_decline(W)
    :: grants[GW(nonce, W)].state == SENT && kind == ENDED -> take_ended(W)
    fi;
    kind = 0;
    nonce = 0;
    broken = 0
}

inline throw_away_frames(W)
{
    do
    :: len(to_writer[W]) > 0 ->
#ifdef OLD_CONNECTION_IS_READ
        to_writer[W] ? kind, nonce, handle, epochs;
        unread[W] ! kind, nonce, handle, epochs
#else
        to_writer[W] ? _, _, _, _
#endif
    :: else -> break
    od;
    do
    :: len(to_sink[W]) > 0 -> to_sink[W] ? _, _, _
    :: else -> break
    od
}
