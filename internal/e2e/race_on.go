//go:build race

package e2e

// raceDetector: the tests run with it, so the binary under test is built with it too.
const raceDetector = true
