package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
)

//go:embed algorithms.md.tmpl
var pageTemplate string

// page is the reference page: the template's text, with a table of each family
// where the template calls for it.
func page(rows []row) ([]byte, error) {
	written := map[string]bool{}
	section := func(write func([]row) string, among func(row) bool) func(string) (string, error) {
		return func(family string) (string, error) {
			of := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.Family != family || !among(r) })
			if len(of) == 0 {
				return "", fmt.Errorf("the table has no such algorithms of the family %q", family)
			}
			for _, r := range of {
				written[r.Name] = true
			}
			return write(of), nil
		}
	}
	t, err := template.New("algorithms.md").Funcs(template.FuncMap{
		"groups":     section(groupTable, row.exchange),
		"signatures": section(signatureTable, func(r row) bool { return !r.exchange() }),
		"count": func(library string) (n int) {
			for _, r := range rows {
				if r.Library == library {
					n++
				}
			}
			return n
		},
	}).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, nil); err != nil {
		return nil, err
	}
	for _, r := range rows {
		if !written[r.Name] {
			return nil, fmt.Errorf("no section has %s: give the family %s one in algorithms.md.tmpl", r.Name, r.Family)
		}
	}
	return out.Bytes(), nil
}

func groupTable(rows []row) string {
	return markdown([]string{"name", "NIST level", "code point", "OID", "public key", "secret key", "ciphertext", "shared secret", "status"}, rows, func(r row) []string {
		return []string{named(r), level(r), codePoint(r), r.OID, size(r.PublicKey), size(r.SecretKey), size(r.Ciphertext), size(r.SharedSecret), r.Status}
	})
}

func signatureTable(rows []row) string {
	return markdown([]string{"name", "key", "NIST level", "code point", "OID", "public key", "secret key", "signature", "certificate", "status"}, rows, func(r row) []string {
		name, key := named(r), ""
		if r.Kind == "key" {
			name = ""
		}
		if r.hasKey() {
			key = code(r.keyName())
		}
		return []string{name, key, level(r), codePoint(r), r.OID, size(r.PublicKey), size(r.SecretKey), size(r.Signature), size(r.Certificate), r.Status}
	})
}

// markdown writes a table, without the columns that are empty in every row.
func markdown(columns []string, rows []row, cells func(row) []string) string {
	lines := [][]string{columns, slices.Repeat([]string{"---"}, len(columns))}
	used := make([]bool, len(columns))
	for _, r := range rows {
		line := cells(r)
		for i, cell := range line {
			used[i] = used[i] || cell != ""
		}
		lines = append(lines, line)
	}
	var out strings.Builder
	for _, line := range lines {
		for i, cell := range line {
			if used[i] {
				out.WriteString("| " + cell + " ")
			}
		}
		out.WriteString("|\n")
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func code(s string) string { return "`" + s + "`" }

func named(r row) string {
	name := code(r.Name)
	if r.provider() {
		for _, a := range r.Aliases {
			name += ", " + code(a)
		}
	} else if openSSL := r.openSSL(); openSSL != r.Name {
		name += " (" + code(openSSL) + " in OpenSSL)"
	}
	return name
}

func level(r row) string {
	switch {
	case r.Kind == "scheme":
		return ""
	case !r.postQuantum():
		return "none"
	}
	return fmt.Sprint(r.Level)
}

func codePoint(r row) string {
	switch {
	case r.CodePoint == 0:
		return ""
	case !r.fitsTLS():
		return fmt.Sprintf("0x%04X †", r.CodePoint)
	}
	return fmt.Sprintf("0x%04X", r.CodePoint)
}

func size(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
