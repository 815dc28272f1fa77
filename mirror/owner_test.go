package mirror

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/leaktest"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// ownerCluster is kfake, or what LOCKSTEP_TEST_BOOTSTRAP names.
func ownerCluster(t *testing.T) []string {
	t.Helper()
	t.Cleanup(func() { leaktest.None(t) })
	var seed []string
	if b := os.Getenv("LOCKSTEP_TEST_BOOTSTRAP"); b != "" {
		seed = strings.Split(b, ",")
	} else {
		fake, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{
			"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0",
		}))
		require.NoError(t, err)
		t.Cleanup(fake.Close)
		seed = fake.ListenAddrs()
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(seed...))
	require.NoError(t, err)
	defer cl.Close()
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(cl), 0))
	return seed
}

// ownerSession is the shortest that a stock broker takes.
const ownerSession = 6 * time.Second

type ownerRun struct {
	*Owner
	stop func() error

	mu       sync.Mutex
	released []int32
	valve    ownerValve
}

func startOwner(t *testing.T, seed []string, group string, o OwnerOptions) *ownerRun {
	t.Helper()
	r := &ownerRun{}
	o.Client = []kgo.Opt{kgo.SeedBrokers(seed...), kgo.Dialer(r.valve.dial)}
	o.Logger = slog.New(slog.DiscardHandler)
	o.SessionTimeout = cmp.Or(o.SessionTimeout, ownerSession)
	o.group = group
	inner := o.Release
	o.Release = func(ctx context.Context, ps []int32) {
		if inner != nil {
			inner(ctx, ps)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.released = append(r.released, ps...)
	}
	w, err := NewOwner(o)
	require.NoError(t, err)
	r.Owner = w
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = r.stop() })
	return r
}

func (r *ownerRun) given() []int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.released)
}

// until waits for owned partitions to be as wanted, by Changes alone.
func (r *ownerRun) until(t *testing.T, ok func(owned []int32) bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		ch := r.Changes()
		if ok(r.Owned()) {
			return
		}
		select {
		case <-ch:
		case <-limit:
			require.FailNow(t, "did not come about", "owned: %v", r.Owned())
		}
	}
}

func count(n int) func([]int32) bool { return func(o []int32) bool { return len(o) == n } }

type ownerValve struct {
	mu    sync.Mutex
	shut  bool
	conns []net.Conn
}

func (d *ownerValve) dial(ctx context.Context, network, host string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return nil, errors.New("valve is shut")
	}
	var nd net.Dialer
	c, err := nd.DialContext(ctx, network, host)
	if err == nil {
		d.conns = append(d.conns, c)
	}
	return c, err
}

func (d *ownerValve) set(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = shut
	if shut {
		for _, c := range d.conns {
			_ = c.Close()
		}
		d.conns = nil
	}
}

// Two instances share the partitions; what moves is released first, by the one
// that has it, before the other gets it.
func TestOwnersShare(t *testing.T) {
	seed := ownerCluster(t)
	var second atomic.Pointer[ownerRun]
	var early atomic.Int32
	a := startOwner(t, seed, "share", OwnerOptions{Release: func(_ context.Context, ps []int32) {
		b := second.Load()
		if b == nil {
			return // it has only just begun to join
		}
		for _, n := range b.Owned() {
			if slices.Contains(ps, n) {
				early.Add(1)
			}
		}
	}})
	a.until(t, count(ledger.Partitions))
	require.True(t, a.Healthy())
	b := startOwner(t, seed, "share", OwnerOptions{})
	second.Store(b)
	b.until(t, count(ledger.Partitions/2))
	a.until(t, count(ledger.Partitions/2))
	require.Len(t, a.given(), ledger.Partitions/2)
	require.Zero(t, early.Load(), "the other one had them before they were released")
	require.ElementsMatch(t, a.given(), b.Owned())

	require.NoError(t, a.stop())
	require.Empty(t, a.Owned())
	require.Len(t, a.given(), ledger.Partitions, "all that was left was released at the end")
	b.until(t, count(ledger.Partitions))
	require.Empty(t, b.given())
}

// M20: cut off from the group, an owner stops by itself before the group can
// give its partitions away, and nothing is released.
func TestOwnerCutOff(t *testing.T) {
	seed := ownerCluster(t)
	a := startOwner(t, seed, "cut", OwnerOptions{})
	a.until(t, count(ledger.Partitions))
	b := startOwner(t, seed, "cut", OwnerOptions{})
	b.until(t, count(ledger.Partitions/2))
	a.until(t, count(ledger.Partitions/2))
	before := len(a.given())
	a.valve.set(true)
	gone := make(chan time.Time, 1)
	go func() {
		for ch := a.Changes(); len(a.Owned()) > 0; ch = a.Changes() {
			<-ch
		}
		gone <- time.Now()
	}()
	b.until(t, count(ledger.Partitions))
	taken := time.Now()
	require.True(t, (<-gone).Before(taken), "the old owner stopped before the new one began")
	require.False(t, a.Healthy())
	require.Len(t, a.given(), before)
	a.valve.set(false)
	a.until(t, count(ledger.Partitions/2))
	b.until(t, count(ledger.Partitions/2))
}

// A fenced partition comes back only by a heartbeat sent after the fence.
func TestOwnerFenced(t *testing.T) {
	seed := ownerCluster(t)
	a := startOwner(t, seed, "fence", OwnerOptions{})
	a.until(t, count(ledger.Partitions))
	ch := a.Changes()
	a.Fenced(7)
	<-ch
	a.until(t, count(ledger.Partitions))
	require.True(t, a.Healthy())
}

// Two instances with one instance.id: the older one ends with an error that
// says so.
func TestOwnerSameInstanceID(t *testing.T) {
	seed := ownerCluster(t)
	a := startOwner(t, seed, "static", OwnerOptions{InstanceID: "one"})
	a.until(t, count(ledger.Partitions))
	b := startOwner(t, seed, "static", OwnerOptions{InstanceID: "one"})
	b.until(t, count(ledger.Partitions))
	// They are of one age and take turns for a while; of two, the older one gives up at once.
	<-a.fatalCh
	require.ErrorContains(t, a.stop(), `instance.id "one"`)
	b.until(t, count(ledger.Partitions))
	require.Nil(t, b.fatal)
}

// A join that was given up is answered after the one sent for it, or after the
// process that sent it was killed: then the coordinator says that another member
// has our instance.id, and there is none. It is joined again.
func TestOwnerReplacedByItself(t *testing.T) {
	seed := ownerCluster(t)
	a := startOwner(t, seed, "ghost", OwnerOptions{InstanceID: "one"})
	a.until(t, count(ledger.Partitions))
	for range maxReplaced { // no more than that
		cl, err := kgo.NewClient(kgo.SeedBrokers(seed...), kgo.ConsumerGroup("ghost"), kgo.ConsumeTopics(ledger.Topic), kgo.InstanceID("one"),
			kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.SessionTimeout(ownerSession))
		require.NoError(t, err)
		changed := a.Changes()
		require.Eventually(t, func() bool { _, gen := cl.GroupMetadata(); return gen >= 0 }, 30*time.Second, time.Millisecond)
		cl.Close() // a static member says nothing at its end
		<-changed
		a.until(t, count(ledger.Partitions))
	}
	require.Nil(t, a.fatal)
}

// A static member that ends in order leaves the group: nobody waits for its
// session.
func TestOwnerStaticLeaves(t *testing.T) {
	seed := ownerCluster(t)
	a := startOwner(t, seed, "leaves", OwnerOptions{InstanceID: "one", SessionTimeout: 5 * time.Minute})
	require.Eventually(t, func() bool { return len(a.left()) == ledger.Partitions }, time.Minute, 10*time.Millisecond)
	require.NoError(t, a.stop())
	b := startOwner(t, seed, "leaves", OwnerOptions{InstanceID: "two"})
	b.until(t, count(ledger.Partitions))
}

// A static member that ends for another one of its id releases what it has; the
// other one gets it without a rebalance.
func TestOwnerStaticRestart(t *testing.T) {
	seed := ownerCluster(t)
	a := startOwner(t, seed, "restart", OwnerOptions{InstanceID: "one"})
	a.until(t, count(ledger.Partitions))
	a.Stay()
	require.NoError(t, a.stop())
	require.Len(t, a.given(), ledger.Partitions)
	b := startOwner(t, seed, "restart", OwnerOptions{InstanceID: "one"})
	b.until(t, count(ledger.Partitions))
}

// The cluster is gone: Run still ends, soon.
func TestOwnerEndsWithoutCluster(t *testing.T) {
	seed := ownerCluster(t)
	a := startOwner(t, seed, "gone", OwnerOptions{})
	a.until(t, count(ledger.Partitions))
	a.valve.set(true)
	begun := time.Now()
	require.NoError(t, a.stop())
	t.Logf("ended after %v", time.Since(begun))
	require.Empty(t, a.Owned())
}

// Between the moment that an owner's time is over and the moment that this is
// noticed somebody may ask, give up everything, and wait for the next change:
// that the group has confirmed it after all.
func TestOwnerConfirmedAfterItsTime(t *testing.T) {
	w, err := NewOwner(OwnerOptions{})
	require.NoError(t, err)
	w.mu.Lock()
	w.assigned[7] = true
	w.confirm(time.Now())
	w.tell()
	w.mu.Unlock()
	require.Equal(t, []int32{7}, w.Owned())
	w.mu.Lock()
	w.confirmed = time.Now().Add(-time.Minute)
	w.mu.Unlock()
	changed := w.Changes()
	if w.Owned() != nil {
		t.Fatal("owned after its time")
	}
	select { // as a caller does that took it first
	case <-changed:
		changed = w.Changes()
	default:
	}
	w.mu.Lock()
	w.confirm(time.Now())
	w.tell()
	w.mu.Unlock()
	select {
	case <-changed:
	default:
		t.Fatal("nobody learns that it is an owner again")
	}
}

func TestOwnerRefusesShortSessions(t *testing.T) {
	_, err := NewOwner(OwnerOptions{SessionTimeout: time.Millisecond})
	require.ErrorContains(t, err, "instance.session_timeout")
}

// What is fenced while it goes to another instance may be confirmed during the
// release of the others: it must not be acquired then, nor later.
func TestHandsOverWhatIsFenced(t *testing.T) {
	var w *Owner
	released := false
	w, err := NewOwner(OwnerOptions{Release: func(_ context.Context, ps []int32) {
		released = true
		require.Equal(t, []int32{1}, ps)
		require.True(t, w.HandsOver(1))
		require.True(t, w.HandsOver(2))
		require.False(t, w.HandsOver(3))
	}})
	require.NoError(t, err)
	w.assign([]int32{1, 2, 3})
	w.confirmed = time.Now()
	w.Fenced(2)
	w.revoke(t.Context(), []int32{1, 2})
	require.True(t, released)
	require.False(t, w.HandsOver(1) || w.HandsOver(2))
}
