package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Group is the consumer group whose assignment of the ledger's partitions says
// which instance mirrors what (DESIGN §4).
const Group = "__lockstep"

// DefaultSessionTimeout of the group. Brokers allow 6 s to 30 min as they
// come (group.min.session.timeout.ms, group.max.session.timeout.ms).
const DefaultSessionTimeout = 10 * time.Second

// OwnerOptions of an [Owner]. Client is required, the rest has defaults.
type OwnerOptions struct {
	Client []kgo.Opt // how the destination is reached
	Logger *slog.Logger
	// SessionTimeout is how long the group keeps a silent member. After 0.8
	// of it without a confirmed heartbeat an owner stops by itself (M20).
	SessionTimeout time.Duration
	// InstanceID makes the membership static (KIP-345): a restart within the
	// session timeout gets its partitions back without a rebalance.
	InstanceID string
	// Release is called before partitions go to another instance, and at the
	// end of Run: it stops what is theirs, so that nothing is in flight, and
	// writes the last checkpoints. The group waits for it, for as long as its
	// ctx lasts (one session timeout). Not called for what is already lost.
	Release func(ctx context.Context, partitions []int32)

	group string // for tests
}

// Owner takes part in the group. What [Owner.Owned] says holds until
// [Owner.Changes] fires; it is empty whenever it can't be told for certain.
type Owner struct {
	o   OwnerOptions
	log *slog.Logger

	beat chan struct{} // heartbeat now
	stay atomic.Bool   // Stay

	mu        sync.Mutex
	assigned  map[int32]bool
	fenced    map[int32]time.Time
	handing   map[int32]bool // they are being revoked
	confirmed time.Time      // when the newest heartbeat that was answered well was sent
	since     time.Time      // when this membership was confirmed first
	replaced  int            // times in a row that a young membership was replaced
	owned     []int32        // what was last told
	changed   chan struct{}
	fatal     error
	fatalCh   chan struct{}
	rejoin    chan struct{} // this membership is over: begin another
}

// NewOwner connects nothing yet.
func NewOwner(o OwnerOptions) (*Owner, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.SessionTimeout = cmp.Or(o.SessionTimeout, DefaultSessionTimeout)
	o.group = cmp.Or(o.group, Group)
	if o.Release == nil {
		o.Release = func(context.Context, []int32) {}
	}
	if o.SessionTimeout < time.Second {
		return nil, fmt.Errorf("instance.session_timeout is %v, must be 1s or more", o.SessionTimeout)
	}
	return &Owner{
		o: o, log: o.Logger, beat: make(chan struct{}, 1), assigned: map[int32]bool{}, fenced: map[int32]time.Time{}, handing: map[int32]bool{},
		changed: make(chan struct{}), fatalCh: make(chan struct{}), rejoin: make(chan struct{}, 1),
	}, nil
}

// Owned are the ledger partitions that this instance owns now, sorted.
func (w *Owner) Owned() []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell() // what is said here is what the next change is from
	return slices.Clone(w.owned)
}

// Changes is closed at the next change of Owned. Take it, then ask Owned, then
// wait.
func (w *Owner) Changes() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// Healthy tells whether the group has confirmed this member within 0.8 of the
// session timeout.
func (w *Owner) Healthy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.healthy()
}

// Deadline is when this instance stops being an owner unless the group
// confirms it again before; zero before the first time.
func (w *Owner) Deadline() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deadline()
}

// Fenced says that a write to ledger partition n was refused as fenced. It is
// not ours until the group confirms, by a heartbeat sent after this, that it
// still is (then it was an older owner's last attempt, or our own transaction
// had timed out).
func (w *Owner) Fenced(n int32) {
	w.mu.Lock()
	w.fenced[n] = time.Now()
	w.tell()
	w.mu.Unlock()
	w.kick()
}

func (w *Owner) deadline() time.Time {
	if w.confirmed.IsZero() {
		return time.Time{}
	}
	return w.confirmed.Add(w.o.SessionTimeout * 4 / 5)
}

// healthy goes by both clocks: the monotonic one stands still while the machine
// is suspended, the wall clock may be set back.
func (w *Owner) healthy() bool {
	now, end := time.Now(), w.deadline()
	return now.Before(end) && now.Round(0).Before(end.Round(0))
}

// now is what is owned now; w.mu is held.
func (w *Owner) now() []int32 {
	if !w.healthy() {
		return nil
	}
	var out []int32
	for n := range w.assigned {
		if _, ok := w.fenced[n]; !ok {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// tell fires Changes when Owned is another than before; w.mu is held.
func (w *Owner) tell() {
	n := w.now()
	if slices.Equal(n, w.owned) {
		return
	}
	w.owned = n
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *Owner) kick() {
	select {
	case w.beat <- struct{}{}:
	default:
	}
}

// Stay has Run end without leaving the group, where membership is static: an
// owner of the same InstanceID goes on at once.
func (w *Owner) Stay() { w.stay.Store(true) }

// Run takes part in the group until ctx ends, then releases what is owned and
// leaves. An error means that trying again doesn't help.
func (w *Owner) Run(ctx context.Context) error {
	for {
		if again, err := w.membership(ctx); err != nil || !again {
			return err
		}
	}
}

// membership is one client in the group. again: it was replaced, and another is
// to begin.
func (w *Owner) membership(ctx context.Context) (again bool, err error) {
	opts := append(
		slices.Clone(w.o.Client),
		kgo.ClientID("lockstep-owner"),
		kgo.ConsumerGroup(w.o.group),
		kgo.ConsumeTopics(ledger.Topic),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(w.o.SessionTimeout),
		kgo.HeartbeatInterval(w.o.SessionTimeout/3),
		// Longer than a release may take, or the group would drop us for it.
		kgo.RebalanceTimeout(3*w.o.SessionTimeout),
		// A coordinator that hangs is given up early, at the end too.
		kgo.RequestTimeoutOverhead(max(w.o.SessionTimeout/2, time.Second)),
		kgo.RetryTimeout(w.o.SessionTimeout),
		kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { w.assign(m[ledger.Topic]) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { w.revoke(ctx, m[ledger.Topic]) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { w.lose(m[ledger.Topic]) }),
		kgo.WithHooks(manageErrors(w.manageError)),
	)
	if w.o.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(w.o.InstanceID))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return false, fmt.Errorf("client for group %s: %w", w.o.group, err)
	}
	// The group is all that this client is for; the view reads the topic.
	cl.PauseFetchTopics(ledger.Topic)

	var wg sync.WaitGroup
	loop, stop := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() { w.heartbeats(loop, cl) })
	wg.Go(func() { w.drain(loop, cl) })
	select {
	case <-ctx.Done():
	case <-w.fatalCh:
	case <-w.rejoin:
		again = true
	}
	// Heartbeats go on while the client releases and leaves.
	member, _ := cl.GroupMetadata()
	cl.CloseAllowingRebalance()
	w.revoke(ctx, w.left())
	stop()
	wg.Wait()
	if w.o.InstanceID != "" && member != "" && !again && !w.stay.Load() {
		w.leave(ctx, member)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.confirmed, w.since = time.Time{}, time.Time{}
	w.tell()
	return again && w.fatal == nil, w.fatal
}

// leave takes a static member out of the group, which its client doesn't do: the
// others would wait for its session's end before they take over.
func (w *Owner) leave(ctx context.Context, member string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(w.o.SessionTimeout/4, time.Second))
	defer cancel()
	cl, err := kgo.NewClient(append(slices.Clone(w.o.Client), kgo.ClientID("lockstep-owner"))...)
	if err == nil {
		defer cl.Close()
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = w.o.group
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID, m.InstanceID = member, &w.o.InstanceID
		req.Members = append(req.Members, m)
		_, err = req.RequestWith(ctx, cl) // an answer that we are no member is as good
	}
	if err != nil {
		w.log.Warn("group not left: others take over when the session ends", "group", w.o.group, "err", err)
	}
}

// assign is called by the client when the group gives partitions to us.
func (w *Owner) assign(ps []int32) {
	w.mu.Lock()
	for _, n := range ps {
		w.assigned[n] = true
		delete(w.fenced, n)
	}
	w.tell()
	w.mu.Unlock()
	w.kick()
	if len(ps) > 0 {
		w.log.Info("ledger partitions assigned", "count", len(ps), "partitions", brief(ps))
	}
}

// revoke is called by the client before partitions go elsewhere. The group
// waits until it returns.
func (w *Owner) revoke(ctx context.Context, ps []int32) {
	w.mu.Lock()
	owned := w.now()
	var release []int32
	for _, n := range ps {
		w.handing[n] = true // what is fenced, too: it may be confirmed before this is over
		if slices.Contains(owned, n) {
			release = append(release, n)
		}
	}
	w.mu.Unlock()
	if len(release) > 0 {
		w.log.Info("ledger partitions handed over", "count", len(release), "partitions", brief(release))
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.o.SessionTimeout)
		w.o.Release(rctx, release)
		cancel()
	}
	w.lose(ps)
}

func (w *Owner) lose(ps []int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range ps {
		delete(w.assigned, n)
		delete(w.fenced, n)
		delete(w.handing, n)
	}
	w.tell()
}

// HandsOver tells whether ledger partition n is about to go to another instance.
func (w *Owner) HandsOver(n int32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.handing[n]
}

func (w *Owner) left() []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []int32
	for n := range w.assigned {
		out = append(out, n)
	}
	return out
}

// manageErrors is a [kgo.HookGroupManageError].
type manageErrors func(error)

func (f manageErrors) OnGroupManageError(err error) { f(err) }

func (w *Owner) manageError(err error) {
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		w.fencedInstance(err)
	case errors.Is(err, kerr.InvalidSessionTimeout):
		w.fail(fmt.Errorf("group %s: instance.session_timeout %v is outside of what the destination allows "+
			"(group.min.session.timeout.ms, group.max.session.timeout.ms): %w", w.o.group, w.o.SessionTimeout, err))
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		w.log.Error("no right to join the group: grant Read and Describe on it", "group", w.o.group, "err", err)
	default:
		w.mu.Lock()
		w.since = time.Time{}
		w.mu.Unlock()
		w.log.Warn("group membership lost; joining again", "group", w.o.group, "err", err)
	}
}

// maxReplaced is how often a young membership may be replaced in a row.
const maxReplaced = 2

// fencedInstance: a member with our instance.id has joined after us. That may
// have been ourselves: a coordinator that hung answers the join that was given
// up after the one that was sent for it, and one of a process that was killed.
// So a membership that is younger than a session begins again; the older one of
// two that live with the same id ends.
func (w *Owner) fencedInstance(err error) {
	w.mu.Lock()
	if !w.since.IsZero() && time.Since(w.since) > w.o.SessionTimeout {
		w.replaced = maxReplaced
	}
	w.replaced++
	n := w.replaced
	w.mu.Unlock()
	if n > maxReplaced {
		w.fail(fmt.Errorf("group %s: another instance runs with instance.id %q: give each its own: %w", w.o.group, w.o.InstanceID, err))
		return
	}
	w.log.Warn("group membership replaced; joining again", "group", w.o.group, "err", err)
	select {
	case w.rejoin <- struct{}{}:
	default:
	}
}

func (w *Owner) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fatal == nil {
		w.fatal = err
		close(w.fatalCh)
	}
}

// drain takes what the client has to say. Fetching is paused: that is errors.
func (w *Owner) drain(ctx context.Context, cl *kgo.Client) {
	for ctx.Err() == nil {
		fs := cl.PollFetches(ctx)
		if fs.IsClientClosed() {
			return
		}
	}
}

// heartbeats asks the coordinator, beside the client's own heartbeats, whether
// we still are a member: only here is the answer seen together with the time
// at which the question was sent. It also notices when the deadline passes.
func (w *Owner) heartbeats(ctx context.Context, cl *kgo.Client) {
	every := w.o.SessionTimeout / 4
	for {
		w.heartbeat(ctx, cl)
		wait := every
		w.mu.Lock()
		w.tell()
		if d := time.Until(w.deadline()); d > 0 && d < wait {
			wait = d
		}
		w.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-w.beat:
		case <-ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

func (w *Owner) heartbeat(ctx context.Context, cl *kgo.Client) {
	member, generation := cl.GroupMetadata()
	if member == "" || generation < 0 {
		return
	}
	// Never past the deadline, so that it is noticed in time.
	ctx, cancel := context.WithTimeout(ctx, w.o.SessionTimeout/4)
	defer cancel()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = w.o.group, member, generation
	if w.o.InstanceID != "" {
		req.InstanceID = kmsg.StringPtr(w.o.InstanceID)
	}
	// The session counts from when the coordinator got it: not before this.
	sent := time.Now()
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		w.log.Debug("heartbeat not answered", "group", w.o.group, "err", err)
		return
	}
	err = kerr.ErrorForCode(resp.ErrorCode)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		for n, at := range w.fenced {
			if sent.After(at) {
				delete(w.fenced, n)
			}
		}
		w.confirm(sent)
	case errors.Is(err, kerr.RebalanceInProgress): // a member still; nothing is taken from it unasked
		w.confirm(sent)
	default: // the client sees it too, and says what is lost
		w.log.Debug("heartbeat refused", "group", w.o.group, "err", err)
	}
	w.tell()
}

// confirm: we were a member when a heartbeat was sent; w.mu is held.
func (w *Owner) confirm(sent time.Time) {
	w.confirmed = sent
	switch {
	case w.since.IsZero():
		w.since = sent
	case sent.Sub(w.since) > w.o.SessionTimeout:
		w.replaced = 0
	}
}

// brief names up to eight partitions.
func brief(ps []int32) string {
	ps = slices.Sorted(slices.Values(ps))
	var b strings.Builder
	for i, n := range ps {
		if i == 8 {
			fmt.Fprintf(&b, " … %d", ps[len(ps)-1])
			break
		}
		fmt.Fprintf(&b, " %d", n)
	}
	return strings.TrimSpace(b.String())
}
