package mirror

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// The source may change its leader between a question and what is made of the
// answer: the new one is asked for itself.
func TestAnswerOvertakenByALeader(t *testing.T) {
	p := running(t)
	a := &ask{kind: askEpoch}
	p.mu.Lock()
	p.walk.epoch = 0
	p.question(a)
	p.mu.Unlock()
	p.setSource(leader{broker: 1, epoch: 1, known: true}, true)
	p.answered(a, 0)
	_, _, st := p.fetchSpec(1, false, 1<<20, time.Now())
	require.Equal(t, fetchNot, st, "the new leader is read without having been asked")
	require.NotNil(t, p.todo.ask)
	p.answered(p.todo.ask, 1)
	_, _, st = p.fetchSpec(1, false, 1<<20, time.Now())
	require.Equal(t, fetchReady, st)
}

// A ledger that refuses what a command asks for is not asked again and again,
// although the failure to be written waits behind the command.
func TestCommandBeforeAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := running(t)
		store := p.eng.Store.(*fakeStore)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		puts := 0
		store.hook(func(*ledger.Record) error {
			if puts++; puts == 1000 {
				cancel() // time stands still here while it is busy
			}
			return kerr.TopicAuthorizationFailed
		})
		store.mu.Lock()
		part := *store.parts[partKey{"t", 0}]
		part.Command = &ledger.Command{Topic: "t", Mirror: "m", Seq: 1, Desired: epoch.StateStopped}
		store.parts[partKey{"t", 0}] = &part
		store.mu.Unlock()
		p.run(ctx)
		require.Less(t, puts, 60)
		require.Greater(t, puts, 10)
	})
}
