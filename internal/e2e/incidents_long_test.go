//go:build long

package e2e_test

import (
	"fmt"
	"testing"
)

// TestIncidentsLong repeats every incident, also with acks=leader.
func TestIncidentsLong(t *testing.T) {
	for i := range 3 {
		for _, acks := range []string{"all", "leader"} {
			for _, in := range incidents() {
				t.Run(fmt.Sprintf("%s/%s/%d", in.name, acks, i), func(t *testing.T) { runIncident(t, in, acks) })
			}
		}
	}
}
