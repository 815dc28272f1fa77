package e2e_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// The tests of the main job on real Kafka. They share the source cluster (each with topics of its own) and the
// binary; every test has a destination of its own, so that each begins without a ledger.
var (
	kafka  testkafka.Pair
	binary e2e.Binary
)

func TestMain(m *testing.M) {
	code := kafka.Main(m)
	binary.Remove()
	os.Exit(code)
}

func destination(t *testing.T, brokers int) *testkafka.Cluster {
	t.Helper()
	return testkafka.Start(t, testkafka.Options{Name: "destination", Brokers: brokers})
}

// withTimeout bounds a test: by three times d, which is ample on a machine that has nothing else to do.
func withTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*d)
	t.Cleanup(cancel)
	return ctx
}
