package plural

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	require.Equal(t, []string{"0 topics", "1 topic", "2 topics"}, []string{Of(0, "topic"), Of(1, "topic"), Of(int64(2), "topic")})
}
