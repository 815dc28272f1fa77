//go:build long

package foreign_test

import (
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/e2e/foreign"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// Every client and every case before three brokers, so that each learns several addresses from the proxy (PX-035,
// PX-039: never one address for two nodes), on mirrored topics of several kinds. Old and new librdkafka (PX-009).
func TestClientsLong(t *testing.T) {
	matrix(t, setup{
		name: "long", destination: testkafka.Options{Brokers: 3},
		mirrored: []string{"transactions", "codecs", "values", "timestamps", "log-start", "compacted"},
		clients:  func(foreign.Client) bool { return true },
		cases:    func(foreign.Case) bool { return true },
	})
}
