package haproxy

import (
	"slices"
	"testing"
)

func TestDescriptorsAreWhatThereIsMemoryFor(t *testing.T) {
	for _, tc := range []struct {
		name   string
		memory int64
		want   uint64
	}{
		{"two for each 100 KiB beyond 64 MiB: 1 GiB", 1 << 30, 2 * 9830},
		{"512 MiB", 512 << 20, 2 * 4587},
		{"no more than 20000 connections' in 2 GiB", 2 << 30, 40000},
		{"nor in the memory of a node", 1 << 40, 40000},
		{"no fewer than 1000 connections' in 128 MiB", 128 << 20, 2000},
		{"nor in next to nothing", 1 << 20, 2000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Descriptors(tc.memory); got != tc.want {
				t.Errorf("%d bytes: %d descriptors, want %d", tc.memory, got, tc.want)
			}
		})
	}
}

func TestPortsThatHandConnectionsOnHoldLessThanHalfOfThem(t *testing.T) {
	for _, tc := range []struct {
		name        string
		descriptors uint64
		want        []string
	}{
		{"one port of a pod with 2 GiB", 40000, []string{"QTLS_SELECTED_CONNECTIONS_1=9900"}},
		{"each of three", 40000, []string{"QTLS_SELECTED_CONNECTIONS_3=3300"}},
		{"of a pod with the least memory", 2000, []string{"QTLS_SELECTED_CONNECTIONS_1=400", "QTLS_SELECTED_CONNECTIONS_32=12"}},
		{"of one with no limit on descriptors", 1 << 63, []string{"QTLS_SELECTED_CONNECTIONS_1=9900"}},
		{"of one that has hardly any", 64, []string{"QTLS_SELECTED_CONNECTIONS_1=1", "QTLS_SELECTED_CONNECTIONS_32=1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := SelectionEnvironment(tc.descriptors)
			for _, want := range tc.want {
				if !slices.Contains(got, want) {
					t.Errorf("%q misses %s", got, want)
				}
			}
		})
	}
}
