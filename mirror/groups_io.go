package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

const (
	groupsAFetch      = 100  // groups in one OffsetFetch
	groupsALookup     = 1000 // groups in one FindCoordinator
	groupRequests     = 4    // reads at once
	groupCommits      = 16   // commits at once
	groupRetryTimeout = 10 * time.Second
)

// groupCluster is one side's groups: it asks coordinators itself, as kgo's own
// sharding would try a whole batch again for the sake of one group.
type groupCluster struct {
	cl *kgo.Client

	mu     sync.Mutex
	coords map[string]int32     // where a group's coordinator is
	apis   map[int32]brokerAPIs // what brokers offer
}

// brokerAPIs are what a broker can do for groups.
type brokerAPIs struct {
	batches bool // takes several groups in one OffsetFetch
	share   bool // tells and sets where share groups are
}

func newGroupCluster(opts []kgo.Opt) (*groupCluster, error) {
	v := kconn.ClientVersions()
	// From v10 on topics have ids only, which all had to be looked up, also
	// those of topics that are not mirrored.
	v.SetMaxKeyVersion(int16(kmsg.OffsetFetch), 9)
	v.SetMaxKeyVersion(int16(kmsg.OffsetCommit), 9)
	cl, err := kgo.NewClient(append(append([]kgo.Opt{}, opts...), kgo.MaxVersions(v), kgo.RequestRetries(3), kgo.RetryTimeout(groupRetryTimeout))...)
	if err != nil {
		return nil, err
	}
	return &groupCluster{cl: cl, coords: map[string]int32{}, apis: map[int32]brokerAPIs{}}, nil
}

func (c *groupCluster) close() { c.cl.Close() }

// listedGroup is a group as a cluster lists it.
type listedGroup struct {
	active bool // it has members
	share  bool
}

// list are the groups of all brokers that answer; missing says why some may be
// missing, nil: none is. err: no broker answered.
func (c *groupCluster) list(ctx context.Context) (groups map[string]listedGroup, missing, err error) {
	groups = map[string]listedGroup{}
	c.mu.Lock()
	clear(c.apis) // brokers may have been up- or downgraded
	c.mu.Unlock()
	n := 0
	shards := c.cl.RequestSharded(ctx, kmsg.NewPtrListGroupsRequest())
	for _, s := range shards {
		if err := s.Err; err != nil {
			missing = err
			continue
		}
		resp := s.Resp.(*kmsg.ListGroupsResponse)
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			missing = fmt.Errorf("ListGroups of broker %d: %w", s.Meta.NodeID, err)
			continue
		}
		n++
		for i := range resp.Groups {
			g := &resp.Groups[i]
			groups[g.Group] = listedGroup{
				active: g.GroupState != "" && g.GroupState != "Empty" && g.GroupState != "Dead",
				share:  g.GroupType == "share" || g.GroupType == "Share",
			}
		}
	}
	if n == 0 {
		return nil, missing, fmt.Errorf("no broker lists its groups: %w", kconn.OfClient(c.cl, missing))
	}
	return groups, missing, nil
}

// locate finds the coordinators of groups, or why not.
func (c *groupCluster) locate(ctx context.Context, groups []string) (at map[int32][]string, failed map[string]error) {
	at, failed = map[int32][]string{}, map[string]error{}
	var unknown []string
	c.mu.Lock()
	for _, g := range groups {
		if b, ok := c.coords[g]; ok {
			at[b] = append(at[b], g)
		} else {
			unknown = append(unknown, g)
		}
	}
	c.mu.Unlock()
	for len(unknown) > 0 {
		n := min(groupsALookup, len(unknown))
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.CoordinatorKeys = unknown[:n]
		r, err := c.cl.Request(ctx, req)
		if err != nil {
			for _, g := range unknown[:n] {
				failed[g] = err
			}
		} else {
			resp := r.(*kmsg.FindCoordinatorResponse)
			for i := range resp.Coordinators {
				f := &resp.Coordinators[i]
				if err := kerr.ErrorForCode(f.ErrorCode); err != nil {
					failed[f.Key] = err
					continue
				}
				at[f.NodeID] = append(at[f.NodeID], f.Key)
				c.mu.Lock()
				c.coords[f.Key] = f.NodeID
				c.mu.Unlock()
			}
		}
		unknown = unknown[n:]
	}
	return at, failed
}

// forget drops a group's coordinator if an error says that it is another's, or
// can't be reached.
func (c *groupCluster) forget(group string, err error) {
	var ke *kerr.Error
	if errors.As(err, &ke) && !errors.Is(err, kerr.NotCoordinator) && !errors.Is(err, kerr.CoordinatorNotAvailable) {
		return
	}
	c.mu.Lock()
	delete(c.coords, group)
	c.mu.Unlock()
}

// offers tells what a broker can do.
func (c *groupCluster) offers(ctx context.Context, broker int32) (brokerAPIs, error) {
	c.mu.Lock()
	b, ok := c.apis[broker]
	c.mu.Unlock()
	if ok {
		return b, nil
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "lockstep", "1"
	r, err := c.cl.Broker(int(broker)).RetriableRequest(ctx, req)
	if err != nil {
		return b, err
	}
	for _, k := range r.(*kmsg.ApiVersionsResponse).ApiKeys {
		switch kmsg.Key(k.ApiKey) {
		case kmsg.OffsetFetch:
			b.batches = k.MaxVersion >= 8
		case kmsg.AlterShareGroupOffsets: // came together with DescribeShareGroupOffsets
			b.share = true
		}
	}
	c.mu.Lock()
	c.apis[broker] = b
	c.mu.Unlock()
	return b, nil
}

// offsets fetches the committed offsets of groups, many in a request, and hands
// each group's to take, one at a time, or why there are none.
func (c *groupCluster) offsets(ctx context.Context, groups []string, take func(string, []kmsg.OffsetFetchResponseGroupTopic, error)) {
	var mu sync.Mutex
	tell := func(group string, topics []kmsg.OffsetFetchResponseGroupTopic, err error) {
		switch {
		case errors.Is(err, kerr.GroupIDNotFound): // it has no offsets
			topics, err = nil, nil
		case err != nil:
			c.forget(group, err)
		}
		mu.Lock()
		defer mu.Unlock()
		take(group, topics, err)
	}
	at, failed := c.locate(ctx, groups)
	for g, err := range failed {
		tell(g, nil, err)
	}
	var all errgroup.Group
	for broker, list := range at {
		all.Go(func() error { c.fetchFrom(ctx, broker, list, tell); return nil })
	}
	_ = all.Wait()
}

func (c *groupCluster) fetchFrom(ctx context.Context, broker int32, groups []string, tell func(string, []kmsg.OffsetFetchResponseGroupTopic, error)) {
	can, err := c.offers(ctx, broker)
	if err != nil {
		for _, g := range groups {
			tell(g, nil, err)
		}
		return
	}
	size, many := 1, can.batches
	if many {
		size = groupsAFetch
	}
	var chunks errgroup.Group
	chunks.SetLimit(groupRequests)
	for ; len(groups) > 0; groups = groups[min(size, len(groups)):] {
		chunk := groups[:min(size, len(groups))]
		chunks.Go(func() error { c.fetchChunk(ctx, broker, chunk, many, tell); return nil })
	}
	_ = chunks.Wait()
}

func (c *groupCluster) fetchChunk(ctx context.Context, broker int32, groups []string, many bool, tell func(string, []kmsg.OffsetFetchResponseGroupTopic, error)) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = groups[0]
	if many {
		for _, g := range groups {
			rg := kmsg.NewOffsetFetchRequestGroup()
			rg.Group = g
			req.Groups = append(req.Groups, rg)
		}
	}
	r, err := c.cl.Broker(int(broker)).RetriableRequest(ctx, req)
	if err != nil {
		for _, g := range groups {
			tell(g, nil, err)
		}
		return
	}
	resp := r.(*kmsg.OffsetFetchResponse)
	if !many {
		var ts []kmsg.OffsetFetchResponseGroupTopic
		for i := range resp.Topics {
			t := kmsg.OffsetFetchResponseGroupTopic{Topic: resp.Topics[i].Topic}
			for _, p := range resp.Topics[i].Partitions {
				t.Partitions = append(t.Partitions, kmsg.OffsetFetchResponseGroupTopicPartition{
					Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata, ErrorCode: p.ErrorCode,
				})
			}
			ts = append(ts, t)
		}
		tell(groups[0], ts, kerr.ErrorForCode(resp.ErrorCode))
		return
	}
	answered := map[string]bool{}
	for i := range resp.Groups {
		g := &resp.Groups[i]
		answered[g.Group] = true
		tell(g.Group, g.Topics, kerr.ErrorForCode(g.ErrorCode))
	}
	for _, g := range groups {
		if !answered[g] {
			tell(g, nil, fmt.Errorf("OffsetFetch answer of broker %d is without the group: %w", broker, kerr.CoordinatorNotAvailable))
		}
	}
}

// groupCommit is one partition of a commit.
type groupCommit struct {
	partKey
	groupOffset
	meta *string
}

// commit commits a group's offsets as nobody's member, which brokers allow for
// groups without members only. It gives one error for each, nil: committed.
func (c *groupCluster) commit(ctx context.Context, group string, list []groupCommit) []error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = group, -1
	topics := map[string]int{}
	for i := range list {
		x := &list[i]
		ti, ok := topics[x.topic]
		if !ok {
			ti = len(req.Topics)
			topics[x.topic] = ti
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic = x.topic
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = x.partition, x.offset, x.epoch, x.meta
		req.Topics[ti].Partitions = append(req.Topics[ti].Partitions, p)
	}
	return c.change(ctx, group, list, func(broker int32, tell func(string, int32, error) bool) error {
		r, err := c.cl.Broker(int(broker)).Request(ctx, req)
		if err != nil {
			return err
		}
		for _, t := range r.(*kmsg.OffsetCommitResponse).Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); tell(t.Topic, p.Partition, err) && err != nil {
					c.forget(group, err)
				}
			}
		}
		return nil
	})
}

// change has a group's coordinator change the offsets in list. send asks it and
// tells the outcome of each partition (tell says whether it is in list), or gives
// an error that is of all. It isn't retried: whether it landed is seen in the next
// cycle. The result is one error for each of list, nil: changed.
func (c *groupCluster) change(ctx context.Context, group string, list []groupCommit, send func(broker int32, tell func(topic string, partition int32, err error) bool) error) []error {
	errs := make([]error, len(list))
	fail := func(err error) []error {
		c.forget(group, err)
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	at, failed := c.locate(ctx, []string{group})
	if err := failed[group]; err != nil {
		return fail(err)
	}
	place := map[partKey]int{}
	for i := range list {
		place[list[i].partKey] = i
		errs[i] = kerr.CoordinatorNotAvailable // until it is answered
	}
	for broker := range at {
		err := send(broker, func(topic string, partition int32, err error) bool {
			i, ok := place[partKey{topic, partition}]
			if ok {
				errs[i] = err
			}
			return ok
		})
		if err != nil {
			return fail(err)
		}
	}
	return errs
}
