// Package histories runs the property tests.
package histories

import (
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Check is rapid.Check, which draws 100 histories. With LOCKSTEP_HISTORIES, a
// duration, it goes on with others for so long: most of the faults that such tests
// found were in one history of thousands. Call it from the Test function itself:
// that is how `make histories` finds the tests.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	var long time.Duration
	if v := os.Getenv("LOCKSTEP_HISTORIES"); v != "" {
		var err error
		if long, err = time.ParseDuration(v); err != nil {
			t.Fatalf("LOCKSTEP_HISTORIES: %v", err)
		}
	}
	for end := time.Now().Add(long); ; {
		if rapid.Check(quiet{t}, property); !time.Now().Before(end) {
			return
		}
	}
}

// quiet leaves out what rapid says of each hundred that passed.
type quiet struct{ *testing.T }

func (q quiet) Logf(format string, args ...any) {
	q.Helper()
	if !strings.HasPrefix(format, "[rapid] OK") {
		q.T.Logf(format, args...)
	}
}
