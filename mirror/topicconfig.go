package mirror

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// configEntry is one topic config as a cluster describes it.
type configEntry struct {
	value   string
	dynamic bool // set on the topic itself, not inherited from broker or default
}

// topicConfigs are a topic's configs by key. What a cluster doesn't list it
// doesn't know.
type topicConfigs map[string]configEntry

// Configs that never follow the source (facts §7): they say how a cluster
// keeps its replicas, or where its brokers put data, not what the topic is.
var neverSynced = map[string]bool{
	"unclean.leader.election.enable":                true,
	"min.insync.replicas":                           true,
	"leader.replication.throttled.replicas":         true,
	"follower.replication.throttled.replicas":       true,
	"message.downconversion.enable":                 true,
	"message.format.version":                        true,
	"compression.type":                              true, // set below
	"min.compaction.lag.ms":                         true, // set below
	"max.compaction.lag.ms":                         true, // set below
	"max.message.bytes":                             true, // set below
	"confluent.placement.constraints":               true,
	"file.delete.delay.ms":                          true,
	"preallocate":                                   true,
	"flush.messages":                                true,
	"flush.ms":                                      true,
	"message.timestamp.type":                        true, // set below
	"message.timestamp.before.max.ms":               true, // set below
	"message.timestamp.after.max.ms":                true, // set below
	"message.timestamp.difference.max.ms":           true, // set below
	"internal.segment.bytes":                        true,
	"errors.deadletterqueue.group.enable":           true,
	"mirror.unclean.leader.election.enable":         true,
	"mirror.support.unclean.leader.election.enable": true,
}

func neverSync(key string) bool {
	return neverSynced[key] || strings.HasPrefix(key, "remote.") || strings.HasPrefix(key, "local.")
}

// ConfigFilter selects the topic configs that follow the source, by RE2
// expressions that match a whole key; exclude wins. What a mirror needs for
// itself ([wantedConfigs]) and what never follows stand above it.
type ConfigFilter struct{ include, exclude []*regexp.Regexp }

// NewConfigFilter compiles the expressions.
func NewConfigFilter(include, exclude []string) (f ConfigFilter, err error) {
	if f.include, err = wholeNames("config", include); err != nil {
		return f, err
	}
	f.exclude, err = wholeNames("config", exclude)
	return f, err
}

// follows tells whether a key of the source's topic is set here too. The zero
// filter follows all.
func (f ConfigFilter) follows(key string) bool {
	return !neverSync(key) && (f.include == nil || matches(f.include, key)) && !matches(f.exclude, key)
}

// configRules are a mirror's settings for the configs of its topics.
type configRules struct {
	filter ConfigFilter
	minLag time.Duration // hazard H1
}

// wantedConfigs is what the destination's topic must have while it is
// mirrored: the source topic's own (dynamic) configs, and what keeps stamped
// batches as they are:
//   - compression.type=producer, or the broker recompresses each batch;
//   - CreateTime with open bounds, or the broker overwrites or rejects the
//     source's timestamps;
//   - max.message.bytes no lower than the source's effective one;
//   - on compacted topics a floor for min.compaction.lag.ms (hazard H1), and
//     max.compaction.lag.ms no lower than that.
//
// known has the keys the destination knows (its version decides which
// timestamp bounds exist); a key it doesn't know is left out.
func wantedConfigs(src, known topicConfigs, rules configRules) map[string]string {
	want := map[string]string{}
	for k, e := range src {
		if e.dynamic && rules.filter.follows(k) {
			want[k] = e.value
		}
	}
	// The policy counts even when the source has it from its broker's defaults.
	if p := src["cleanup.policy"].value; p != "" {
		want["cleanup.policy"] = p
	}
	want["compression.type"] = "producer"
	want["message.timestamp.type"] = "CreateTime"
	forever := strconv.FormatInt(math.MaxInt64, 10)
	for _, k := range []string{"message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "message.timestamp.difference.max.ms"} {
		want[k] = forever
	}
	if n := number(src["max.message.bytes"].value); n > 0 {
		if compacted(src) {
			// Batches with holes are written anew with a header per record (DESIGN §6).
			// Bounded, as the source may be a former mirror that has its value from here.
			n = max(n, min(2*n+1<<20, maxGrown))
		}
		want["max.message.bytes"] = strconv.FormatInt(max(n, number(known["max.message.bytes"].value)), 10)
	}
	if compacted(src) {
		lag := max(number(src["min.compaction.lag.ms"].value), rules.minLag.Milliseconds())
		want["min.compaction.lag.ms"] = strconv.FormatInt(lag, 10)
		if m := number(src["max.compaction.lag.ms"].value); m > 0 {
			want["max.compaction.lag.ms"] = strconv.FormatInt(max(m, lag), 10)
		}
	}
	if len(known) > 0 {
		maps.DeleteFunc(want, func(k, _ string) bool { _, ok := known[k]; return !ok })
	}
	return want
}

// maxGrown is up to where max.message.bytes of a compacted topic is raised above
// the source's: well below what brokers take in one request.
const maxGrown = 64 << 20

// configPlan is how a topic's configs are brought to what is wanted.
type configPlan struct {
	alter map[string]string // what differs, and nothing else: the operator's own settings stay (CF-03)
	drop  []string          // set by Lockstep, and not wanted any more
	set   map[string]string // what Lockstep will have set, to be remembered first
}

// planConfigs compares what a topic has with what is wanted. set is what
// Lockstep remembers to have set: of that, what is not wanted any more (the
// source has gone back to its default) is dropped, unless somebody has given it
// another value since.
func planConfigs(have topicConfigs, want, set map[string]string) configPlan {
	p := configPlan{alter: map[string]string{}, set: map[string]string{}}
	for k, v := range want {
		_, ours := set[k]
		if have[k].value != v {
			p.alter[k], ours = v, true
		}
		if ours {
			p.set[k] = v
		}
	}
	for k, v := range set {
		if _, wanted := want[k]; !wanted && have[k].dynamic && have[k].value == v {
			p.drop, p.set[k] = append(p.drop, k), v // forgotten at the next sync, when it is gone
		}
	}
	slices.Sort(p.drop)
	return p
}

func compacted(c topicConfigs) bool { return strings.Contains(c["cleanup.policy"].value, "compact") }

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
