package testkafka

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a person looks for is the cause, not forty frames of it.
func TestLogTailWithoutFrames(t *testing.T) {
	require.Equal(t, "ERROR disk\n\tat a\n\tat b\nCaused by: full\n\tat e\n\tat f\nWARN end",
		withoutFrames("ERROR disk\n\tat a\n\tat b\n\tat c\n\tat d\nCaused by: full\n\tat e\n\tat f\n\t... 3 more\nWARN end"))
}
