// Command docgen writes the generated pages of docs/ (make docs).
package main

import (
	"fmt"
	"os"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

func main() {
	if err := os.WriteFile("docs/config.md", []byte(config.Reference()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}
