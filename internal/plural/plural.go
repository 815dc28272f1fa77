// Package plural counts things in English.
package plural

import "fmt"

// Of is "1 partition", "2 partitions": the noun is in the singular.
func Of[N int | int32 | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
