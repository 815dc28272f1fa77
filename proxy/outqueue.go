package proxy

// outQueue holds what a socket didn't take, in chunks of one size from the
// loop's free list.
type outQueue struct {
	chunks [][]byte
	head   int // bytes of chunks[0] that are sent
	n      int // bytes waiting
}

// What is counted as held are whole chunks: a slow client with one byte in its
// way costs a chunk.

const (
	chunkBytes     = 16 << 10
	freeChunks     = 256 // kept per loop: 4 MiB
	maxFlushChunks = 64
)

func (q *outQueue) push(l *loop, b []byte) {
	q.n += len(b)
	for len(b) > 0 {
		last := len(q.chunks) - 1
		if last < 0 || len(q.chunks[last]) == cap(q.chunks[last]) {
			q.chunks = append(q.chunks, l.chunk())
			l.hold(chunkBytes)
			last++
		}
		c := q.chunks[last]
		n := min(len(b), cap(c)-len(c))
		q.chunks[last] = append(c, b[:n]...)
		b = b[n:]
	}
}

// drop takes n sent bytes off the front.
func (q *outQueue) drop(l *loop, n int) {
	q.n -= n
	done := 0
	for n > 0 {
		c := q.chunks[done]
		left := len(c) - q.head
		if n < left {
			q.head += n
			break
		}
		n -= left
		q.head = 0
		l.freeChunk(c)
		l.hold(-chunkBytes)
		done++
	}
	k := copy(q.chunks, q.chunks[done:])
	clear(q.chunks[k:])
	q.chunks = q.chunks[:k]
}

func (l *loop) chunk() []byte {
	if n := len(l.chunks); n > 0 {
		c := l.chunks[n-1]
		l.chunks[n-1] = nil
		l.chunks = l.chunks[:n-1]
		return c
	}
	return make([]byte, 0, chunkBytes)
}

func (l *loop) freeChunk(c []byte) {
	if len(l.chunks) < freeChunks {
		l.chunks = append(l.chunks, c[:0])
	}
}
