// Command reference makes docs/benchmarks/reference.md of the reports that are
// committed: docs/benchmarks/*/report.json.
//
//	go run ./hack/reference      (from the root of the repository)
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"qtls.dev/qtls/internal/bench/report"
)

func main() {
	if err := run(filepath.Join("docs", "benchmarks")); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*", "report.json"))
	if err != nil {
		return err
	}
	var sources []report.Source
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		r, err := report.Parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		path, err := filepath.Rel(folder, file)
		if err != nil {
			return err
		}
		sources = append(sources, report.Source{Path: filepath.ToSlash(path), Report: r})
	}
	return os.WriteFile(filepath.Join(folder, "reference.md"), []byte(report.Reference(sources)), 0o644)
}
