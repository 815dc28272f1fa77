package proxy

// respKind says what happens to the answer of a request.
type respKind uint8

const (
	respStream  respKind = iota // passes as it comes
	respTail                    // streams, but for the broker addresses at its end
	respRewrite                 // buffered, rewritten
	respAsk                     // answers a request of an exchange
	respToken                   // a bare SASL token: streams, has no correlation id
)

// awaited is a request that was sent to the broker and will be answered.
type awaited struct {
	key, version int16
	corr         int32
	kind         respKind
	x            *xchg // respAsk
	cb           func(body []byte, err error)
	topics       uint64 // Fetch passed on: the set of mirror topics it was judged by
}

// fifo holds the awaited answers of one upstream connection in order: a broker
// answers strictly in the order of the requests (it mutes the connection while
// it serves one).
type fifo struct {
	ring  []awaited // length is a power of two
	first int
	n     int
}

func (f *fifo) len() int { return f.n }

func (f *fifo) push(a awaited) {
	if f.n == len(f.ring) {
		bigger := make([]awaited, max(8, 2*len(f.ring)))
		for i := range f.n {
			bigger[i] = f.ring[(f.first+i)&(len(f.ring)-1)]
		}
		f.ring, f.first = bigger, 0
	}
	f.ring[(f.first+f.n)&(len(f.ring)-1)] = a
	f.n++
}

// head may only be called when len() > 0.
func (f *fifo) head() *awaited { return &f.ring[f.first] }

func (f *fifo) pop() awaited {
	a := f.ring[f.first]
	f.ring[f.first] = awaited{}
	f.first = (f.first + 1) & (len(f.ring) - 1)
	f.n--
	return a
}
