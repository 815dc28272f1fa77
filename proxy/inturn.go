package proxy

// inTurn runs step for 0 … n-1, each when the one before it has called next, and
// then done. All of it happens on the connection's loop; a step calls next once,
// at once or when a broker has answered. One that calls it at once costs no
// stack: a request may have as many partitions as a frame has room for, and
// calls that nest as deep would end the process.
func inTurn(n int, step func(i int, next func()), done func()) {
	t := &turns{n: n, step: step, done: done}
	t.next = t.run
	t.run()
}

type turns struct {
	i, n   int
	inside bool // a step is being called
	again  bool // it has called next meanwhile

	step func(i int, next func())
	next func()
	done func()
}

func (t *turns) run() {
	if t.again = true; t.inside {
		return
	}
	for t.inside = true; t.again; {
		if t.i == t.n {
			t.done()
			return
		}
		i := t.i
		t.i++
		t.again = false
		t.step(i, t.next)
	}
	t.inside = false
}
