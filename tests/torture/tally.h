/* Everything a run counts. Each engine adds to its own array; the coordinator sums them. */
#ifndef KVF_TORTURE_TALLY_H
#define KVF_TORTURE_TALLY_H

/* id, name in the JSON object. The comments say what one unit is. */
#define KVF_TALLIES(X)                                                                         \
    X(REQUESTS, "requests") /* that ended, seen by decode */                                   \
    X(SUCCESSES, "successes")                                                                  \
    X(FAILURES, "failures")                                                                    \
    X(UNPLANNED_FAILURES, "unplanned_failures") /* nobody aborted them */                      \
    X(PLANNED_FAILURES, "planned_failures")     /* by a fault of the proxy */                  \
    X(DONORS, "aborted_in_flight") /* 0 < placed < total at the abort, ended aborted */        \
    X(ABORTED_ELSEWHERE, "aborted_elsewhere") /* ended aborted, nothing placed or all of it */ \
    X(LOST_RACE, "aborts_lost_race")          /* aborted, and Success all the same */          \
    X(ABORTS_IN_FLIGHT, "aborts_planned_in_flight")                                            \
    X(ABORTS_NEAR_END, "aborts_planned_near_end")                                              \
    X(ABORTS_BEFORE_GRANT, "aborts_planned_before_grant")                                      \
    X(ABORTS_QUEUED, "aborts_planned_queued")                                                  \
    X(ABORTS_TIMEOUT, "aborts_planned_timeout")                                                \
    X(ABORTS_BY_SINK, "aborts_by_sink")                                                        \
    X(ABORTS_BY_SOURCE, "aborts_by_source")                                                    \
    X(ABORTS_BY_BOTH, "aborts_by_both")                                                        \
    X(PROBES, "reuse_probes")                                                                  \
    X(EXPOSED, "probes_exposed")   /* of them: bytes landed after the abort */                 \
    X(FOREIGN, "foreign_canaries") /* donors' probes in which a canary did not stay */         \
    X(FOREIGN_BYTES, "foreign_bytes")                                                          \
    X(FOREIGN_OWNED, "foreign_bytes_of_the_donor") /* that are the donor's own pattern */      \
    X(OTHER_PROBES, "other_probes") /* pages of other aborted rooms, probed too */             \
    X(OTHER_FOREIGN, "other_foreign_canaries")                                                 \
    X(WRONG_BYTES, "wrong_bytes") /* in rooms that ended in Success */                         \
    X(WRONG_ROOMS, "wrong_rooms")                                                              \
    X(BYTES_CHECKED, "bytes_checked")     /* of every Success, before its pages go back */     \
    X(BYTES_RECHECKED, "bytes_rechecked") /* once more at the end of the answer */             \
    X(LANDED_AFTER, "landed_after_abort_bytes")                                                \
    X(BYTES_MOVED, "bytes_moved")         /* placed, over all rooms */                         \
    X(PAGES_REUSED, "donor_pages_reused") /* by a real room that arrived byte for byte */      \
    X(PAGES_LOST, "pages_lost")                                                                \
    X(PAGES_QUARANTINED, "pages_quarantined")                                                  \
    X(BAD_GIVES, "bad_gives")       /* pages given back by somebody who did not own them */    \
    X(ROOMS_OPENED, "rooms_opened") /* of both kinds */                                        \
    X(ROOMS_ENDED, "rooms_ended")                                                              \
    X(ROOMS_UNDRAINED, "rooms_undrained") /* left at detach */                                 \
    X(FORGOTTEN, "forgotten_releases")    /* that did not ask the room */                      \
    X(REFUSALS, "ledger_refusals")        /* times the ledger said: lent */                    \
    X(LENT_OPENS, "lent_opens_refused")   /* opens that the library refused: pages lent */     \
    X(BOUND_BROKEN, "bound_broken")       /* rooms whose abort-to-drained passed the bound */  \
    X(PROOF_1, "proof_never_posted")                                                           \
    X(PROOF_2, "proof_landed")                                                                 \
    X(PROOF_3, "proof_source_idle")                                                            \
    X(PROOF_4, "proof_peer_drained")                                                           \
    X(PROOF_5, "proof_revoked")                                                                \
    X(PROOF_6, "proof_fenced")                                                                 \
    X(PROOF_7, "proof_worker_gone")                                                            \
    X(PROOF_8, "proof_engine_gone")                                                            \
    X(PROOF_9, "proof_operator")

#define KVF_TALLY_ID(id, name) KVF_TALLY_##id,
enum kvf_tally { KVF_TALLIES(KVF_TALLY_ID) KVF_TALLY_COUNT };
#undef KVF_TALLY_ID

const char *kvf_tally_name(enum kvf_tally tally);

#endif
