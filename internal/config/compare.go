package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Reloadable tells whether a change of a key (as [Changes] names it) takes
// effect without a restart.
func Reloadable(key string) bool {
	return key == "log.level" || strings.HasPrefix(key, "limits.") || strings.HasPrefix(key, "mirrors[")
}

// OfMirrors tells whether the mirrors have to take up a change of a key: to them
// it is as if the process began anew.
func OfMirrors(key string) bool {
	switch key {
	case "limits.max_frame_bytes", "limits.mirror_memory":
		return true
	}
	return strings.HasPrefix(key, "mirrors[") && !strings.HasSuffix(key, "].unclean_leader_election")
}

// Take is next, as far as it can be taken while running: what is not [Reloadable]
// stays as in c.
func (c *Config) Take(next *Config) *Config {
	out := *next
	out.Listeners, out.Destination, out.Admin, out.Instance = c.Listeners, c.Destination, c.Admin, c.Instance
	out.Log.Format = c.Log.Format
	return &out
}

// Changes are the keys in which two configurations differ, in the order of the
// reference; a mirror's keys by its name: mirrors[dc1].acks. A mirror that only
// one of them has is one key, mirrors[dc1].
func Changes(a, b *Config) []string {
	var keys []string
	differ(reflect.ValueOf(*a), reflect.ValueOf(*b), "", &keys)
	in := func(c *Config, name string) *Mirror {
		for i := range c.Mirrors {
			if c.Mirrors[i].Name == name {
				return &c.Mirrors[i]
			}
		}
		return nil
	}
	for i := range a.Mirrors {
		m, key := &a.Mirrors[i], "mirrors["+a.Mirrors[i].Name+"]"
		if n := in(b, m.Name); n != nil {
			differ(reflect.ValueOf(*m), reflect.ValueOf(*n), key+".", &keys)
		} else {
			keys = append(keys, key)
		}
	}
	for i := range b.Mirrors {
		if in(a, b.Mirrors[i].Name) == nil {
			keys = append(keys, "mirrors["+b.Mirrors[i].Name+"]")
		}
	}
	return keys
}

func differ(a, b reflect.Value, prefix string, keys *[]string) {
	t := a.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() || f.Type == reflect.TypeFor[[]Mirror]() {
			continue
		}
		key := prefix + f.Tag.Get("yaml")
		switch {
		case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[PortRange]():
			differ(a.Field(i), b.Field(i), key+".", keys)
		case (f.Type.Kind() == reflect.Slice || f.Type.Kind() == reflect.Map) && a.Field(i).Len() == 0 && b.Field(i).Len() == 0: // nil is as good as empty
		case !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()):
			*keys = append(*keys, key)
		}
	}
}

// Fingerprint has a short digest of each of a mirror's settings that decide
// what is mirrored and how it looks on the destination, by key. All Locksteps in
// front of one destination must have the same ones; where files lie, and
// credentials, may differ.
func (m *Mirror) Fingerprint() map[string]string {
	bootstrap := slices.Sorted(slices.Values(m.Source.Bootstrap))
	out := map[string]string{}
	for key, v := range map[string]any{
		"source.bootstrap":        bootstrap,
		"topics.include":          m.Topics.Include,
		"topics.exclude":          m.Topics.Exclude,
		"configs.include":         m.Configs.Include,
		"configs.exclude":         m.Configs.Exclude,
		"acls":                    m.ACLs,
		"groups.enabled":          m.Groups.Enabled,
		"groups.include":          m.Groups.Include,
		"groups.exclude":          m.Groups.Exclude,
		"replication_factor":      m.ReplicationFactor,
		"acks":                    m.Acks,
		"min_compaction_lag":      m.MinCompactionLag,
		"unclean_leader_election": m.UncleanLeaderElection,
		"bump_step":               m.BumpStep,
	} {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q", fmt.Sprint(v)))
		out[key] = hex.EncodeToString(sum[:4])
	}
	return out
}
