package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topology knows the destination's brokers, by Lockstep's own connection.
type topology struct {
	client *kgo.Client
	log    *slog.Logger
	every  time.Duration
	gap    time.Duration // how long a client waits for what should have been known
	poked  chan struct{}
	// onBrokers hears of the broker ids, whenever they have changed.
	onBrokers func(ids []int32)

	snap atomic.Pointer[topoSnap]
	mu   sync.Mutex // of changed
	// changed is closed and replaced whenever a look at the cluster ended.
	changed chan struct{}
}

// topoSnap is one look at the cluster; immutable.
type topoSnap struct {
	brokers map[int32]topoBroker
	common  *versions // what all of them speak
}

type topoBroker struct {
	addr     string
	versions *versions // nil: it didn't answer
}

const (
	topologyTimeout = 10 * time.Second
	topologyBackoff = 200 * time.Millisecond // least pause between two looks
	topologyMaxWait = 5 * time.Second        // longest while nothing is known
	topologyGap     = time.Second            // topology.gap
)

func newTopology(bootstrap []string, opts []kgo.Opt, every time.Duration, log *slog.Logger) (*topology, error) {
	opts = append([]kgo.Opt{kgo.SeedBrokers(bootstrap...), kgo.ClientID("lockstep-proxy"), kgo.RequestRetries(2), kgo.MetadataMinAge(topologyBackoff)}, opts...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("client of the destination: %w", err)
	}
	t := &topology{client: client, log: log, every: every, gap: topologyGap, poked: make(chan struct{}, 1), changed: make(chan struct{})}
	t.snap.Store(&topoSnap{})
	return t, nil
}

// run follows the cluster until ctx ends: regularly, and when poked.
func (t *topology) run(ctx context.Context) {
	defer t.client.Close()
	wait := topologyBackoff
	for {
		err := t.look(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := t.every
		if err != nil {
			t.log.Warn("the destination's brokers can't be listed; clients of unknown brokers wait", "err", err, "retry_in", wait)
			pause = wait
			wait = min(2*wait, topologyMaxWait)
		} else {
			wait = topologyBackoff
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-t.poked:
			select {
			case <-ctx.Done():
				return
			case <-time.After(topologyBackoff):
			}
		}
	}
}

func (t *topology) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, topologyTimeout)
	defer cancel()
	defer t.notify()
	// Not kadm's BrokerMetadata: that may answer from kgo's cache, and a look is
	// asked for just because a broker is no longer where it was.
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none
	meta, err := req.RequestWith(ctx, t.client)
	if err == nil {
		err = kerr.ErrorForCode(meta.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("ask the destination for its brokers: %w", err)
	}
	old := t.snap.Load()
	snap := &topoSnap{brokers: make(map[int32]topoBroker, len(meta.Brokers))}
	for _, b := range meta.Brokers {
		addr := net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		snap.brokers[b.NodeID] = topoBroker{addr: addr}
		if was, ok := old.brokers[b.NodeID]; !ok || was.addr != addr {
			if ok {
				t.log.Info("broker moved", "broker", b.NodeID, "address", addr, "was", was.addr)
			} else {
				t.log.Info("broker", "broker", b.NodeID, "address", addr)
			}
		}
	}
	spoken := t.spoken(ctx, snap.brokers)
	for id, b := range snap.brokers {
		if b.versions = spoken[id]; b.versions == nil {
			b.versions = old.brokers[id].versions // it may be restarting
		}
		snap.brokers[id] = b
		if b.versions == nil {
			continue
		}
		if snap.common == nil {
			snap.common = b.versions
		} else {
			snap.common = snap.common.intersect(b.versions)
		}
	}
	t.snap.Store(snap)
	if ids := slices.Sorted(maps.Keys(snap.brokers)); t.onBrokers != nil && !slices.Equal(ids, slices.Sorted(maps.Keys(old.brokers))) {
		t.onBrokers(ids)
	}
	return nil
}

// spoken asks all brokers for their versions; those that don't answer are left
// out.
func (t *topology) spoken(ctx context.Context, brokers map[int32]topoBroker) map[int32]*versions {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var (
		mu  sync.Mutex
		wg  sync.WaitGroup
		out = make(map[int32]*versions, len(brokers))
	)
	for id := range brokers {
		wg.Go(func() {
			req := kmsg.NewPtrApiVersionsRequest()
			req.ClientSoftwareName, req.ClientSoftwareVersion = "lockstep", "0"
			resp, err := req.RequestWith(ctx, t.client.Broker(int(id)))
			if err == nil {
				err = kerr.ErrorForCode(resp.ErrorCode)
			}
			if err != nil {
				t.log.Debug("a broker didn't say its versions", "broker", id, "err", err)
				return
			}
			v := &versions{ranges: make(map[int16][2]int16, len(resp.ApiKeys))}
			for _, k := range resp.ApiKeys {
				v.add(k.ApiKey, k.MinVersion, k.MaxVersion)
			}
			mu.Lock()
			defer mu.Unlock()
			out[id] = v
		})
	}
	wg.Wait()
	return out
}

func (t *topology) notify() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
}

// poke asks for a look soon: a broker is unknown, or not where it was.
func (t *topology) poke() {
	select {
	case t.poked <- struct{}{}:
	default:
	}
}

var errUnknownBroker = errors.New("the destination has no such broker now")

// known is where the broker was at the last look.
func (t *topology) known(id int32) (addr string, ok bool) {
	b, ok := t.snap.Load().brokers[id]
	return b.addr, ok
}

// address waits until the broker is known: while none is, as long as ctx allows;
// else it is down, or has just come, which the next looks will show.
func (t *topology) address(ctx context.Context, id int32) (string, error) {
	var gap <-chan time.Time
	for {
		t.mu.Lock()
		changed := t.changed
		t.mu.Unlock()
		if addr, ok := t.known(id); ok {
			return addr, nil
		}
		if gap == nil && len(t.snap.Load().brokers) > 0 {
			gap = time.After(t.gap)
		}
		t.poke()
		select {
		case <-changed:
			continue
		case <-gap:
		case <-ctx.Done():
		}
		return "", fmt.Errorf("broker %d: %w", id, errUnknownBroker)
	}
}

// nextLook waits until a look that is asked for now has ended.
func (t *topology) nextLook(ctx context.Context) {
	t.mu.Lock()
	changed := t.changed
	t.mu.Unlock()
	t.poke()
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// versions of a broker; of all in common for bootstrap (-1) and brokers that
// have not answered. nil: nothing is known.
func (t *topology) versions(id int32) *versions {
	snap := t.snap.Load()
	if v := snap.brokers[id].versions; v != nil {
		return v
	}
	return snap.common
}

// addresses of all brokers.
func (t *topology) addresses() (out []string) {
	for _, b := range t.snap.Load().brokers {
		out = append(out, b.addr)
	}
	return out
}
