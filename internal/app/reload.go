package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"maps"
	"os"
	"sync/atomic"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Reload is where a changed configuration comes from.
type Reload struct {
	Path string           // the file; looked at now and then
	Now  <-chan os.Signal // and at once; may be nil
}

// lookEvery is how often the file is looked at.
const lookEvery = 2 * time.Second

// switches are the settings that change without a restart.
type switches struct {
	level   slog.LevelVar
	unclean atomic.Pointer[map[string]bool] // unclean_leader_election, by mirror
}

func newSwitches(c *config.Config) *switches {
	s := &switches{}
	s.set(c)
	return s
}

func (s *switches) set(c *config.Config) {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Log.Level)) // checked with the config
	s.level.Set(level)
	unclean := map[string]bool{}
	for _, m := range c.Mirrors {
		unclean[m.Name] = m.UncleanLeaderElection
	}
	s.unclean.Store(&unclean)
}

// uncleanElections tells whether a topic of a mirror is mirrored with support
// for unclean leader elections: by what verbs said, else by the configuration.
func (a *app) uncleanElections(mirror, topic string) bool {
	return a.view.MirrorSettings(mirror).Unclean(topic, (*a.switches.unclean.Load())[mirror])
}

// reload follows the configuration file until ctx ends. What can't change
// without a restart is named in the log, and stays as it was.
func (a *app) reload(ctx context.Context, c *config.Config, r Reload) {
	read := func() [sha256.Size]byte {
		b, err := os.ReadFile(r.Path)
		if err != nil { // as if it were empty: told once
			b = nil
		}
		return sha256.Sum256(bytes.TrimSpace(b))
	}
	seen, running := read(), *c
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-r.Now:
			asked = true
		case <-tick.C:
		}
		now := read()
		if !asked && now == seen {
			continue
		}
		seen = now
		next, err := config.Load(r.Path)
		if err != nil {
			a.log.Error("the changed configuration is not taken: everything stays as it was", "err", err)
			continue
		}
		running = a.take(running, next)
	}
}

// take puts what can be reloaded into effect, and returns the configuration as
// it is in effect then.
func (a *app) take(running config.Config, next *config.Config) config.Config {
	taken, refused := []string{}, []string{}
	for _, k := range config.Changes(&running, next) {
		if config.Reloadable(k) {
			taken = append(taken, k)
		} else {
			refused = append(refused, k)
		}
	}
	if len(refused) > 0 {
		a.log.Error("these settings can't be changed while running: restart for them", "keys", refused)
	}
	running.Log.Level = next.Log.Level
	running.Mirrors = append([]config.Mirror(nil), running.Mirrors...)
	for i := range running.Mirrors {
		for j := range next.Mirrors {
			if running.Mirrors[i].Name == next.Mirrors[j].Name {
				running.Mirrors[i].UncleanLeaderElection = next.Mirrors[j].UncleanLeaderElection
			}
		}
	}
	a.switches.set(&running)
	a.log.Info("configuration reloaded", "changed", taken)
	return running
}

// fingerprints are the mirrors' settings that must be the same everywhere.
func fingerprints(c *config.Config) map[string]map[string]string {
	if len(c.Mirrors) == 0 {
		return nil
	}
	out := map[string]map[string]string{}
	for i := range c.Mirrors {
		out[c.Mirrors[i].Name] = c.Mirrors[i].Fingerprint()
	}
	return out
}

// compareConfigs says when another instance has other settings for a mirror of
// the same name: once for each difference, and only the one that came later.
func (a *app) compareConfigs(ctx context.Context) {
	if a.view.WaitReady(ctx) != nil {
		return
	}
	told := map[string]bool{}
	for {
		changed := a.view.Changed()
		now := map[string]bool{}
		for mirror, by := range a.control.Differing() {
			for id, keys := range by {
				what := mirror + "\x00" + id
				now[what] = true
				if !told[what] && a.later(id) {
					a.log.Error("another instance has other settings for this mirror: whichever mirrors a partition follows its own; make them the same",
						"mirror", mirror, "instance", id, "keys", keys)
				}
			}
		}
		told = maps.Clone(now)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		select { // the ledger changes all the time
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// later tells whether this instance was started after another one.
func (a *app) later(other string) bool {
	var mine, theirs *ledger.Instance
	for _, i := range a.view.Instances() {
		switch i.ID {
		case a.id:
			mine = i
		case other:
			theirs = i
		}
	}
	return mine == nil || theirs == nil || !mine.Started.Before(theirs.Started)
}
