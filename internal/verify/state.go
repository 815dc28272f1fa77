package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// state is the file of Options.Resume.
type state struct {
	Version     int                   `json:"version"`
	Source      string                `json:"source_cluster"`
	Destination string                `json:"destination_cluster"`
	Partitions  map[string]*partState `json:"partitions"` // by topic/partition
}

// partState is what was compared of a partition and equal.
type partState struct {
	SourceTopic      string     `json:"source_topic_id"`
	DestinationTopic string     `json:"destination_topic_id"`
	Next             int64      `json:"next"` // all below was compared
	Epochs           epochsSeen `json:"epochs"`
}

const (
	stateVersion = 1
	saveEvery    = 5 * time.Second
)

// keeper writes the state file; nil: there is none.
type keeper struct {
	path string

	mu    sync.Mutex
	state state
	saved time.Time
	err   error // of the last save
}

// openState reads the file, or begins one.
func openState(path, source, destination string) (*keeper, error) {
	if path == "" {
		return nil, nil
	}
	k := &keeper{path: path, saved: time.Now()}
	k.state = state{Version: stateVersion, Source: source, Destination: destination, Partitions: map[string]*partState{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, k.save() // an unwritable place is told now, not after hours
	}
	if err != nil {
		return nil, fmt.Errorf("resume file: %w", err)
	}
	var was state
	if err := json.Unmarshal(b, &was); err != nil {
		return nil, fmt.Errorf("resume file %s is not one of lockstep verify: name another one, or remove it: %w", path, err)
	}
	switch {
	case was.Version != stateVersion:
		return nil, fmt.Errorf("resume file %s is of version %d, this program writes %d: remove it to begin anew", path, was.Version, stateVersion)
	case was.Source != source || was.Destination != destination:
		return nil, fmt.Errorf("resume file %s is of the clusters %s and %s, these are %s and %s: name another one",
			path, was.Source, was.Destination, source, destination)
	}
	for name, p := range was.Partitions {
		if p != nil {
			k.state.Partitions[name] = p
		}
	}
	return k, nil
}

func (at place) String() string { return at.topic + "/" + strconv.Itoa(int(at.partition)) }

// of is what was compared of a partition, if it is the same topic still.
func (k *keeper) of(at place, source, destination string) *partState {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.state.Partitions[at.String()]
	if p == nil || p.SourceTopic != source || p.DestinationTopic != destination {
		return nil
	}
	c := *p
	return &c
}

// compared takes in how far a partition is, and writes the file now and then.
func (k *keeper) compared(at place, p partState) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p.Epochs = append(epochsSeen(nil), p.Epochs...)
	k.state.Partitions[at.String()] = &p
	if time.Since(k.saved) >= saveEvery {
		k.saveLocked()
	}
}

// save writes the file.
func (k *keeper) save() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saveLocked()
	return k.err
}

// saveLocked replaces the file: whole, or not at all.
func (k *keeper) saveLocked() {
	k.saved, k.err = time.Now(), nil
	b, err := json.MarshalIndent(&k.state, "", " ")
	if err == nil {
		err = replaceFile(k.path, append(b, '\n'))
	}
	if err != nil {
		k.err = fmt.Errorf("resume file: %w", err)
	}
}

func replaceFile(path string, b []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil // the file is there; that it outlives a power cut can't be had here
	}
	_ = d.Sync()
	return d.Close()
}
