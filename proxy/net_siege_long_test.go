//go:build long

package proxy

import (
	"fmt"
	"testing"
)

func TestSiegeLong(t *testing.T) {
	for i := range uint64(8) {
		g := siege{clientTLS: i&1 > 0, brokerTLS: i&2 > 0, clients: 40, requests: 100}
		t.Run(fmt.Sprintf("%d TLS of clients %v, of brokers %v", i, g.clientTLS, g.brokerTLS), func(t *testing.T) { g.run(t, i) })
	}
}
