// Command algorithms makes what follows from the algorithm table,
// crypto/algorithms.csv: the API's enumerations, the tables of package
// algorithms, and the reference page. (The provider's registry is made from it
// by crypto/provider/build.rs.)
//
//	go run ./hack/algorithms      (from the root of the repository)
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// outputs are the files that are made, from the root of the repository.
var outputs = map[string]func([]row) ([]byte, error){
	"api/v1alpha1/zz_generated.algorithms.go":    enumerations,
	"internal/algorithms/zz_generated.tables.go": tables,
	"docs/reference/algorithms.md":               page,
}

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "algorithms:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	const table = "crypto/algorithms.csv"
	data, err := os.ReadFile(filepath.Join(root, table))
	if err != nil {
		return err
	}
	rows, err := parse(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	for path, generate := range outputs {
		out, err := generate(rows)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(filepath.Join(root, path), out, 0o644); err != nil {
			return err
		}
	}
	return nil
}
