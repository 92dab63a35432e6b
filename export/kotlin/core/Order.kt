// The order of a training: which samples each step takes, by NumPy's generator, so that a seed gives the order of every client.
package edgefl

import java.math.BigInteger

private const val DAMAGED = ": its order of samples is damaged: train again"
private val PLACE = Regex("[0-9]{1,4000} [0-9]{1,18}( [0-9a-f]{1,32}(:[0-9a-f]{1,8})?){3}")

/** The words of a place of [Order], the seed first; InputError, which begins with `where`, if it is none. */
fun partsOf(place: String, where: String = "--state"): List<String> =
    if (PLACE.matches(place)) place.split(" ") else throw InputError("$where$DAMAGED")

/**
 * The samples of each step, its graph, and the samples that it mirrors. Each purpose has a generator of its own. [place] is text, from
 * which [move] continues, also within an epoch, and in another client.
 */
class Order(private val samples: Int, private val batchSize: Int, private val seed: ULong) {
    private val generators = List(3) { Generator(seed, it) }
    private var epoch = generators[0].spot // the first generator before this epoch
    private var index = intArrayOf()
    private var taken = 0

    /** The next samples, shuffled in every epoch; the last batch of an epoch may be smaller. */
    fun batch(): IntArray {
        if (taken == 0 || taken == samples) shuffle()
        val first = taken
        taken = minOf(samples.toLong(), taken.toLong() + batchSize).toInt()
        return index.copyOfRange(first, taken)
    }

    fun graph(count: Int): Int = minOf((generators[1].fraction() * count).toInt(), count - 1)

    fun mirrored(): Boolean = generators[2].next32() < 0

    val place: String get() = "$seed $taken $epoch ${generators[1].spot} ${generators[2].spot}"

    fun move(place: String, where: String = "--state") {
        val parts = partsOf(place, where)
        generators.forEachIndexed { i, generator -> generator.spot = parts[i + 2] }
        val had = parts[1].toLong()
        if (had > samples) throw InputError("$where$DAMAGED")
        epoch = parts[2]
        if (had > 0) shuffle()
        taken = had.toInt()
    }

    private fun shuffle() {
        epoch = generators[0].spot
        index = generators[0].permutation(samples)
        taken = 0
    }
}

private val FACTOR = BigInteger("2360ed051fc65da44385df649fccf645", 16)
private val MASK = BigInteger.ONE.shiftLeft(128) - BigInteger.ONE

/** PCG64 (O'Neill 2014), seeded by NumPy's SeedSequence with [seed, purpose]. */
private class Generator(seed: ULong, purpose: Int) {
    private val increment: BigInteger
    private var state: BigInteger
    private var left: Int? = null // the half of a number that is left for the next draw

    init {
        val high = (seed shr 32).toInt()
        val words = seedWords(listOf(seed.toInt()) + listOf(high).filter { it != 0 } + purpose)
        increment = wide(words[2], words[3]).shiftLeft(1).or(BigInteger.ONE).and(MASK)
        state = increment
        state = (state + wide(words[0], words[1])).and(MASK)
        advance()
    }

    /** Where it is: hexadecimal digits of its state, and after a colon what is left. */
    var spot: String
        get() = state.toString(16) + (left?.let { ":" + Integer.toHexString(it) } ?: "")
        set(value) {
            state = BigInteger(value.substringBefore(":"), 16)
            left = value.substringAfter(":", "").ifEmpty { null }?.toLong(16)?.toInt()
        }

    /** A number from 0 to below 1. */
    fun fraction(): Double = (next64() ushr 11) / 9007199254740992.0

    fun next32(): Int {
        left?.let {
            left = null
            return it
        }
        val word = next64()
        left = (word ushr 32).toInt()
        return word.toInt()
    }

    fun permutation(count: Int): IntArray {
        val order = IntArray(count) { it }
        for (i in count - 1 downTo 1) {
            val other = upTo(i)
            order[i] = order[other].also { order[other] = order[i] }
        }
        return order
    }

    private fun upTo(most: Int): Int { // as NumPy shuffles: numbers that are too large are dropped
        val mask = -1 ushr Integer.numberOfLeadingZeros(most)
        return generateSequence { next32() and mask }.first { it <= most }
    }

    private fun advance() {
        state = (state * FACTOR + increment).and(MASK)
    }

    private fun next64(): Long {
        advance()
        val high = state.shiftRight(64).toLong()
        return java.lang.Long.rotateRight(high xor state.toLong(), (high ushr 58).toInt())
    }
}

private fun wide(high: Long, low: Long): BigInteger = BigInteger("%016x%016x".format(high, low), 16)

private fun seedWords(entropy: List<Int>): LongArray {
    var constant = 0x43b0d7e5
    fun hashed(word: Int, factor: Int): Int {
        val mixed = word xor constant
        constant *= factor
        val product = mixed * constant
        return product xor (product ushr 16)
    }
    val pool = IntArray(4) { hashed(entropy.getOrElse(it) { 0 }, 0x931e8875.toInt()) }
    for (from in 0 until 4) for (to in 0 until 4) if (from != to) {
        val mixed = 0xca01f9dd.toInt() * pool[to] - 0x4973f715 * hashed(pool[from], 0x931e8875.toInt())
        pool[to] = mixed xor (mixed ushr 16)
    }
    constant = 0x8b51f9dd.toInt()
    val halves = List(8) { hashed(pool[it % 4], 0x58f38ded) }
    return LongArray(4) { (halves[2 * it].toLong() and 0xffffffff) or (halves[2 * it + 1].toLong() shl 32) }
}
