package app

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"log/slog"
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

	lookEvery time.Duration // tests
}

func (r Reload) every() time.Duration { return cmp.Or(r.lookEvery, lookEvery) }

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

// reload follows the configuration file until ctx ends. What can't change without a restart is named in the
// log, and stays as it was. A change counts when the file looks the same twice: a
// file that is just being written may be a whole one, with fewer mirrors.
func (a *app) reload(ctx context.Context, c *config.Config, r Reload) {
	running := c
	look := func() [sha256.Size]byte {
		b, err := os.ReadFile(r.Path)
		if err != nil { // as if it were empty: told once
			b = nil
		}
		return sha256.Sum256(bytes.TrimSpace(b))
	}
	taken, last := look(), look()
	tick := time.NewTicker(r.every())
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
		now := look()
		settled := now == last && now != taken
		last = now
		if !asked && !settled {
			continue
		}
		taken = now
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
func (a *app) take(running, next *config.Config) *config.Config {
	taken, refused, ofMirrors := []string{}, []string{}, false
	for _, k := range config.Changes(running, next) {
		switch {
		case !config.Reloadable(k):
			refused = append(refused, k)
			continue
		case config.OfMirrors(k):
			ofMirrors = true
		}
		taken = append(taken, k)
	}
	if len(refused) > 0 {
		a.log.Error("these settings can't be changed while running: restart for them", "keys", refused)
	}
	now := running.Take(next)
	if ofMirrors {
		set, err := a.newMirrors(now)
		if err != nil {
			a.log.Error("nothing of the changed configuration is taken, as its mirrors can't be set up: everything stays as it was", "keys", taken, "err", err)
			return running
		}
		a.mirrors.replace(set)
		a.control.SetMirrors(declared(now))
		a.registrar.SetMirrors(fingerprints(now))
	}
	a.proxy.SetLimits(proxyLimits(&now.Limits))
	a.switches.set(now)
	switch {
	case len(taken) > 0:
		a.log.Info("configuration reloaded", "changed", taken)
	case len(refused) == 0:
		a.log.Info("configuration read again: nothing has changed")
	}
	return now
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

// differTolerance is how long instances may differ before it is told: while a
// change is rolled out, they do.
const differTolerance = 30 * time.Second

// compareConfigs says when another instance has had other settings for a mirror of
// the same name for a while: once for each difference, and only the one that came
// later.
func (a *app) compareConfigs(ctx context.Context) {
	if a.view.WaitReady(ctx) != nil {
		return
	}
	var known differences
	for {
		changed := a.view.Changed()
		for _, d := range known.note(a.control.Differing(), time.Now()) {
			if a.later(d.instance) {
				a.log.Warn("another instance has other settings for this mirror: whichever mirrors a partition follows its own; make them the same",
					"mirror", d.mirror, "instance", d.instance, "keys", d.keys)
			}
		}
		select {
		case <-changed: // leases are renewed all the time
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(time.Second):
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

// differences are those between this instance's settings and others'.
type differences map[difference]*differs

type difference struct{ mirror, instance string }

type differs struct {
	difference
	keys  []string
	since time.Time
	told  bool
}

// note takes in how it is now (mirror, instance, keys), and returns what is to be
// told: what has been so for differTolerance, once.
func (d *differences) note(now map[string]map[string][]string, at time.Time) (tell []*differs) {
	was := *d
	*d = differences{}
	for mirror, by := range now {
		for instance, keys := range by {
			k := difference{mirror, instance}
			x := was[k]
			if x == nil {
				x = &differs{difference: k, since: at}
			}
			x.keys = keys
			if !x.told && at.Sub(x.since) >= differTolerance {
				x.told = true
				tell = append(tell, x)
			}
			(*d)[k] = x
		}
	}
	return tell
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
