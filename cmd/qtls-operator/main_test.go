package main

import (
	"maps"
	"slices"
	"testing"
)

// What is listed past the cache is what the cache has, where a Role in each of
// the served namespaces is all that the operator has.
func TestWhichNamespacesAreServed(t *testing.T) {
	for watched, want := range map[string][]string{
		"":                  nil,
		"one":               {"one", "qtls-system"},
		"two, one":          {"one", "qtls-system", "two"},
		"qtls-system, zero": {"qtls-system", "zero"},
	} {
		o := options{namespace: "qtls-system", watchNamespaces: watched}
		if got := served(o); !slices.Equal(got, want) {
			t.Errorf("--watch-namespaces=%q: %q, want %q", watched, got, want)
		}
		c, err := cacheFor(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(c.DefaultNamespaces)); !slices.Equal(got, want) {
			t.Errorf("--watch-namespaces=%q: the cache is of %q, want %q", watched, got, want)
		}
	}
}
