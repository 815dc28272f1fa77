package foreign_test

import (
	"os"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

var (
	kafka  testkafka.Pair
	binary e2e.Binary
)

func TestMain(m *testing.M) {
	code := kafka.Main(m)
	binary.Remove()
	os.Exit(code)
}
