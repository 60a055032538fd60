/* Memory as the ring models see it: weaker than any machine we run on, so that an order the code forgot
 * to ask for is really missing.
 *
 * Each thread has a buffer of stores that other threads do not see yet; its own loads see them. A relaxed
 * store may leave the buffer before older ones to other addresses; a release store only after all older
 * ones; a seq_cst store is a release store that every later seq_cst load of the thread waits for. No other
 * load waits: an acquire load may overtake an older seq_cst store, as C11 and ARM's LDAPR allow and x86 does
 * not. With X86 defined, every seq_cst store is waited for by everything, and stores leave in order.
 * Read-modify-writes act on memory at once; one that releases waits for the buffer to be empty.
 * Loads happen in the order of the program: what an acquire load protects is shown broken by a variant that
 * moves the later load up by hand. */

#ifndef DEPTH
#define DEPTH 3
#endif

#define RELAXED 0
#define RELEASE 1
#define SEQ_CST 2

typedef stores {
    byte addr[DEPTH];
    byte value[DEPTH];
    byte order[DEPTH];
    byte count;
    byte seq_csts
};
stores sb[THREADS];
byte mem[ADDRESSES];

/* The newest store of the thread's own, else memory. Any order but seq_cst. */
#define LOAD(t, a)                                                                             \
    (sb[t].count > 2 && sb[t].addr[2] == (a)                                                   \
         -> sb[t].value[2]                                                                     \
         : (sb[t].count > 1 && sb[t].addr[1] == (a)                                            \
                -> sb[t].value[1]                                                              \
                : (sb[t].count > 0 && sb[t].addr[0] == (a) -> sb[t].value[0] : mem[a])))

/* Guard of a seq_cst load; X86 puts it before every load. */
#define IS_CLEAR(t) (sb[t].seq_csts == 0)
#ifdef X86
#define MAY_LOAD(t) IS_CLEAR(t)
#else
#define MAY_LOAD(t) true
#endif
/* Guard of a read-modify-write that releases. */
#define IS_EMPTY(t) (sb[t].count == 0)

inline store(t, a, v, o)
{
    d_step {
        sb[t].count < DEPTH;
        sb[t].addr[sb[t].count] = a;
        sb[t].value[sb[t].count] = v;
        sb[t].order[sb[t].count] = o;
        sb[t].count++;
        sb[t].seq_csts = sb[t].seq_csts + ((o) == SEQ_CST -> 1 : 0)
    }
}

#ifdef X86
#define MAY_OVERTAKE(i) false
#else
#define MAY_OVERTAKE(i) (sb[t].count > i && sb[t].order[i] == RELAXED)
#endif

/* The buffer of one thread empties in its own time; i names the store that becomes visible. */
proctype Buffer(byte t)
{
    byte i;
end_buffer:
    do
    :: atomic {
           if
           :: sb[t].count > 0 -> i = 0
           :: MAY_OVERTAKE(1) && sb[t].addr[1] != sb[t].addr[0] -> i = 1
           :: MAY_OVERTAKE(2) && sb[t].addr[2] != sb[t].addr[0] &&
                  sb[t].addr[2] != sb[t].addr[1] ->
               i = 2
           fi;
           mem[sb[t].addr[i]] = sb[t].value[i];
           sb[t].seq_csts = sb[t].seq_csts - (sb[t].order[i] == SEQ_CST -> 1 : 0);
           do
           :: i + 1 < sb[t].count ->
               sb[t].addr[i] = sb[t].addr[i + 1];
               sb[t].value[i] = sb[t].value[i + 1];
               sb[t].order[i] = sb[t].order[i + 1];
               i++
           :: else -> break
           od;
           sb[t].count--;
           sb[t].addr[sb[t].count] = 0;
           sb[t].value[sb[t].count] = 0;
           sb[t].order[sb[t].count] = 0;
           i = 0
       }
    od
}
