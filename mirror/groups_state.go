package mirror

import (
	"cmp"
	"errors"
	"hash/maphash"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupEntry is what is remembered of a group's offset of one partition. There
// may be a million of them.
type groupEntry struct {
	part *groupPart
	src  groupOffset // the newest one seen on the source
	dst  groupOffset // and on the destination
	// last is what was in step last, while ours says so.
	last    syncedOffset
	ours    bool
	reason  GroupReason
	looked  int32   // cycle in which dst was read or written last, or before the one that found the entry
	meta    uint64  // hash of the source's metadata
	text    *string // the metadata, while it may have to be written
	since   int64   // unix s: since when reason
	synced  int64   // unix s: in step last; 0: never
	checked int64   // unix s: dst read or written last
	written int64   // unix s: dst written last, or first found in step
}

// group is what is remembered of a group.
type group struct {
	name    string
	share   bool        // a share group: its offsets are where its share partitions start
	reason  GroupReason // of all of it; 0: each entry has its own
	err     string      // the words behind a reason that needs some
	since   int64
	entries []groupEntry // by groupPart.id
}

func (e *groupEntry) mark(r GroupReason, now time.Time) {
	if e.reason != r {
		e.reason, e.since = r, now.Unix()
	}
	if r == GroupSynced {
		e.synced = now.Unix()
	}
}

func (g *group) mark(r GroupReason, err error, now time.Time) {
	if g.reason != r {
		g.reason, g.since = r, now.Unix()
	}
	g.err = ""
	if err != nil {
		g.err = err.Error()
	}
}

const (
	// groupRecheck is how often a group in step is compared with what stands on
	// the destination: it may have been deleted there, or expired.
	groupRecheck = time.Hour
	// groupRewrite is how old a commit may get: brokers drop those of groups
	// without members after offsets.retention.minutes, 7 days by default, also
	// when the source's group lives and has nothing to read.
	groupRewrite = 12 * time.Hour
)

// settled tells whether nothing has to be looked at: the source's offset is what
// was synced, whole, and nothing was cut since.
func (e *groupEntry) settled(now time.Time) bool {
	return e.reason == GroupSynced && e.ours && e.last.src == e.src && e.dst.offset == e.src.offset && e.text == nil &&
		e.part.cut(e.looked, e.dst) < 0 && now.Unix()-e.checked < int64(groupRecheck/time.Second)
}

var metaSeed = maphash.MakeSeed()

func metaHash(s *string) uint64 {
	if s == nil || *s == "" {
		return 0
	}
	return maphash.String(metaSeed, *s)
}

// merge takes in what the source has of a group, of the partitions in scope.
// What it has no more is an entry without offset until the group is looked at,
// and is dropped then.
func (g *group) merge(ts []kmsg.OffsetFetchResponseGroupTopic, find func(topic string, p int32) *groupPart, scope func(*groupPart) bool, cycle int32, now time.Time) {
	var next []groupEntry
	for i := range ts {
		for j := range ts[i].Partitions {
			a := &ts[i].Partitions[j]
			p := find(ts[i].Topic, a.Partition)
			if p == nil || !scope(p) {
				continue
			}
			e := groupEntry{part: p, src: groupOffset{a.Offset, a.LeaderEpoch}, dst: noOffset, looked: cycle - 1, meta: metaHash(a.Metadata), since: now.Unix()}
			if a.Metadata != nil && *a.Metadata != "" {
				e.text = a.Metadata
			}
			if a.ErrorCode != 0 {
				e.src, e.reason = noOffset, sourceReason(kerr.ErrorForCode(a.ErrorCode))
			}
			next = append(next, e)
		}
	}
	byID := func(a, b groupEntry) int { return cmp.Compare(a.part.id, b.part.id) }
	if !slices.IsSortedFunc(next, byID) {
		slices.SortFunc(next, byID)
	}
	next = slices.CompactFunc(next, func(a, b groupEntry) bool { return a.part == b.part })
	i := 0
	var kept []groupEntry
	for _, old := range g.entries {
		if old.part.gone {
			continue
		}
		for i < len(next) && next[i].part.id < old.part.id {
			i++
		}
		found := i < len(next) && next[i].part == old.part
		switch {
		case found && next[i].reason != 0: // an error: what was known stays
			r := next[i].reason
			next[i] = old
			next[i].mark(r, now)
		case found:
			n := &next[i]
			if n.meta == old.meta && old.text == nil {
				n.text = nil // written before
			}
			n.dst, n.last, n.ours, n.reason, n.looked = old.dst, old.last, old.ours, old.reason, old.looked
			n.since, n.synced, n.checked, n.written = old.since, old.synced, old.checked, old.written
		case !scope(old.part):
			kept = append(kept, old)
		case old.src.offset >= 0 && old.reason != GroupNull:
			old.src, old.text = noOffset, nil
			kept = append(kept, old)
		}
	}
	if len(kept) > 0 {
		next = append(next, kept...)
		slices.SortFunc(next, byID)
	}
	g.entries = next
}

// sourceReason sorts an error of the source.
func sourceReason(err error) GroupReason {
	if errors.Is(err, kerr.GroupAuthorizationFailed) || errors.Is(err, kerr.TopicAuthorizationFailed) {
		return GroupDenied
	}
	if errors.Is(err, errNoShareAPI) || errors.Is(err, kerr.InvalidRequest) { // the latter from a Lockstep in front of the source
		return GroupShare
	}
	return GroupNoAnswer
}

// commitReason sorts an error of the destination.
func commitReason(err error) GroupReason {
	switch {
	case errors.Is(err, errNoShareAPI):
		return GroupShare
	case errors.Is(err, errNotPlaced):
		return GroupNotReady
	}
	var ke *kerr.Error
	if !errors.As(err, &ke) {
		return GroupNoAnswerHere
	}
	switch {
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.RebalanceInProgress),
		errors.Is(err, kerr.FencedMemberEpoch), errors.Is(err, kerr.StaleMemberEpoch), errors.Is(err, kerr.NonEmptyGroup):
		return GroupActive
	case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TopicAuthorizationFailed):
		return GroupDeniedHere
	case ke.Retriable, errors.Is(err, kerr.CoordinatorNotAvailable), errors.Is(err, kerr.NotCoordinator):
		return GroupNoAnswerHere
	}
	return GroupRefused
}
