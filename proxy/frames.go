package proxy

const (
	frameStart  = 32 << 10 // what a frame's buffer starts with, whatever size the frame claims
	frameKeep   = 1 << 20  // larger buffers are kept until the garbage collector comes
	framesKept  = 16       // per loop
	frameGrowBy = 2
)

// appendFrame appends b to a frame that will have size bytes. The buffer grows
// with what has come, not with what was announced: ten thousand connections
// that each announce 100 MiB cost nothing.
func (l *loop) appendFrame(frame, b []byte, size int) []byte {
	l.holdFrame(len(b), size)
	if need := len(frame) + len(b); need > cap(frame) {
		bigger := l.getFrame(min(size, max(need, frameGrowBy*cap(frame), frameStart)))
		bigger = append(bigger, frame...)
		l.putFrame(frame)
		frame = bigger
	}
	return append(frame, b...)
}

// holdFrame is hold for bytes of a frame that has, or will have, size bytes: of
// the large ones the budget knows already.
func (l *loop) holdFrame(n, size int) {
	if size >= freeFrameBytes {
		l.whole.Add(int64(n))
	}
	l.hold(n)
}

func (l *loop) getFrame(n int) []byte {
	for i := len(l.frames) - 1; i >= 0; i-- {
		if b := l.frames[i]; cap(b) >= n {
			last := len(l.frames) - 1
			l.frames[i] = l.frames[last]
			l.frames[last] = nil
			l.frames = l.frames[:last]
			return b
		}
	}
	if n > frameKeep {
		if b, ok := l.large.Get().(*[]byte); ok && cap(*b) >= n {
			return (*b)[:0]
		}
	}
	return make([]byte, 0, n)
}

func (l *loop) putFrame(b []byte) {
	switch {
	case cap(b) == 0:
	case cap(b) > frameKeep:
		b = b[:0]
		l.large.Put(&b)
	case len(l.frames) < framesKept:
		l.frames = append(l.frames, b[:0])
	}
}
