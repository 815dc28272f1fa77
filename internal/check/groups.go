package check

import (
	"context"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/mirror"
)

// groupsLookedAt bounds how many groups are tried.
const groupsLookedAt = 200

// groups looks for the rights on the consumer groups that are carried over.
func (k *checker) groups(ctx context.Context, m *config.Mirror, src, dst *side) {
	if !m.Groups.Enabled {
		return
	}
	filter, err := mirror.NewTopicFilter(m.Groups.Include, m.Groups.Exclude)
	if err != nil {
		k.add(Fail, m.Name, "groups", "%v", err)
		return
	}
	listed, err := src.adm.ListGroups(ctx)
	if err != nil {
		k.add(Fail, m.Name, "groups", "the source's groups can't be listed: %v", err)
		return
	}
	var names []string
	for _, name := range listed.Groups() {
		if name != mirror.Group && filter.Match(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	all := len(names)
	names = names[:min(all, groupsLookedAt)]
	k.deniedGroups(m, names, "DESCRIBE", "source", func(name string) error {
		_, err := src.adm.FetchOffsets(ctx, name)
		return err
	})
	if dst != nil {
		// A heartbeat of a member that there isn't changes nothing; it takes the
		// right that a commit takes.
		k.deniedGroups(m, names, "READ", "destination", func(name string) error {
			req := kmsg.NewPtrHeartbeatRequest()
			req.Group, req.MemberID = name, "lockstep-check"
			resp, err := req.RequestWith(ctx, dst.cl)
			if err != nil {
				return err
			}
			return kerr.ErrorForCode(resp.ErrorCode)
		})
	}
	k.add(OK, m.Name, "groups", "consumer groups of the source that match: %d (those that the user may not describe are not among them)", all)
}

func (k *checker) deniedGroups(m *config.Mirror, names []string, right, where string, try func(name string) error) {
	denied := make([]bool, len(names))
	var g errgroup.Group
	g.SetLimit(8)
	for i, name := range names {
		g.Go(func() error { denied[i] = errors.Is(try(name), kerr.GroupAuthorizationFailed); return nil })
	}
	_ = g.Wait()
	var which []string
	for i, name := range names {
		if denied[i] {
			which = append(which, name)
		}
	}
	if len(which) > 0 {
		k.add(Fail, m.Name, "rights", "the user lacks %s on consumer groups %v of the %s: add the ACLs, or exclude them with groups.exclude", right, which[:min(len(which), 20)], where)
	}
}
