package mirror

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// TopicFilter selects topics by RE2 expressions that match a whole name;
// exclude wins (KIP-1279: topics.include, topics.exclude).
type TopicFilter struct {
	include, exclude []*regexp.Regexp
	named            map[string]bool // included by an expression that is one name
}

// NewTopicFilter compiles the expressions.
func NewTopicFilter(include, exclude []string) (*TopicFilter, error) {
	f := &TopicFilter{named: map[string]bool{}}
	var err error
	if f.include, err = wholeNames("topic", include); err != nil {
		return nil, err
	}
	if f.exclude, err = wholeNames("topic", exclude); err != nil {
		return nil, err
	}
	for _, x := range include {
		f.named[x] = true
		if lit, whole := regexp.MustCompile(x).LiteralPrefix(); whole { // dots escaped
			f.named[lit] = true
		}
	}
	return f, nil
}

// wholeNames compiles expressions that must match a whole name.
func wholeNames(what string, list []string) ([]*regexp.Regexp, error) {
	out := make([]*regexp.Regexp, 0, len(list))
	for _, x := range list {
		re, err := regexp.Compile(`\A(?:` + x + `)\z`)
		if err != nil {
			return nil, fmt.Errorf("%s expression %q: %w", what, x, err)
		}
		out = append(out, re)
	}
	return out, nil
}

// Match says whether a topic is mirrored, if it is no internal one.
func (f *TopicFilter) Match(topic string) bool {
	return matches(f.include, topic) && !matches(f.exclude, topic)
}

// Excluded says whether an expression of topics.exclude matches.
func (f *TopicFilter) Excluded(topic string) bool { return matches(f.exclude, topic) }

// Select says whether a topic of the source is mirrored; internal is what the
// source says of it. Of one that topics.include matches and that is left out
// all the same, why tells the reason.
func (f *TopicFilter) Select(topic string, internal bool) (ok bool, why string) {
	if !matches(f.include, topic) {
		return false, ""
	}
	if i := slices.IndexFunc(f.exclude, func(re *regexp.Regexp) bool { return re.MatchString(topic) }); i >= 0 {
		x := f.exclude[i].String()
		return false, fmt.Sprintf("excluded: it matches %q of topics.exclude", x[len(`\A(?:`):len(x)-len(`)\z`)])
	}
	switch {
	case ownTopics[topic]:
		return false, "a topic of Lockstep itself: it is never mirrored"
	case internal && !f.named[topic]:
		return false, "internal: the source's brokers keep their own data in it; to mirror it all the same, name it exactly in topics.include"
	}
	return true, ""
}

// ownTopics belong to the Lockstep in front of the source.
var ownTopics = map[string]bool{ledger.Topic: true, "__lockstep_probe": true}

func matches(res []*regexp.Regexp, s string) bool {
	return slices.ContainsFunc(res, func(re *regexp.Regexp) bool { return re.MatchString(s) })
}
