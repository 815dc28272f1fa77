// Package leaktest finds goroutines that a test leaves behind. goleak itself
// waits less than half a second for those that are about to end, which is too
// little on a machine that has more to do.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds the wait for goroutines that have been told to end.
const patience = time.Minute

func find(opts []goleak.Option) error {
	for end := time.Now().Add(patience); ; {
		if err := goleak.Find(opts...); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// None fails the test if goroutines are left.
func None(t testing.TB, opts ...goleak.Option) {
	t.Helper()
	if err := find(opts); err != nil {
		t.Error(err)
	}
}

// Main is a package's TestMain: it fails if goroutines are left after the last
// test.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := find(nil); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines are left after the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}
