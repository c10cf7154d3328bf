//! Makes the provider's registry from its rows of crypto/algorithms.csv, and has the module export one symbol.

use std::{collections::BTreeMap, env, fmt::Write, fs, path::Path};

fn main() {
    let table = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("../algorithms.csv");
    println!("cargo:rerun-if-changed={}", table.display());
    println!("cargo:rustc-check-cfg=cfg(asan)"); // `make test-asan` sets it
    println!("cargo:rustc-link-lib=dylib=crypto");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--gc-sections");
    // Threads that used the module have destructors in it (AWS-LC, the stacks of crate::stack): it stays mapped until they end.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,relro,-z,now,-z,defs,-z,nodelete");

    let text = fs::read_to_string(&table).unwrap_or_else(|e| panic!("{}: {e}", table.display()));
    let out = Path::new(&env::var("OUT_DIR").unwrap()).join("registry.rs");
    fs::write(out, registry(&text)).unwrap();
}

fn registry(text: &str) -> String {
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let mut primitives = BTreeMap::new();
    let mut algorithms = String::new();
    let mut count = 0;
    for (number, line) in lines.enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(
            fields.len(),
            columns.len(),
            "algorithms.csv, line {}: {} fields, want {}",
            number + 2,
            fields.len(),
            columns.len()
        );
        let row: BTreeMap<&str, &str> = columns.iter().copied().zip(fields).collect();
        if row["library"] == "openssl" {
            continue; // what OpenSSL has itself
        }
        let (name, kind, primitive) = (row["name"], row["kind"], row["primitive"]);
        let variant = match kind {
            "kem" => "Kem",
            "signature" => "Signature",
            other => panic!("algorithm {name}: kind {other:?} is neither kem nor signature"),
        };
        let identifier: String = primitive
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_uppercase()
                } else if c == '+' {
                    'P'
                } else {
                    '_'
                }
            })
            .collect();
        primitives.entry(identifier.clone()).or_insert_with(|| match (row["library"], kind) {
            ("liboqs", _) => format!("liboqs::{variant} = liboqs::{variant}::new(c{primitive:?});"),
            ("kpqc", "kem") => format!("kpqc::Kem = kpqc::Kem(&::kpqc::{}::{primitive});", kpqc_module(primitive)),
            ("kpqc", _) => {
                format!("kpqc::Signature = kpqc::Signature(&::kpqc::{}::{primitive});", kpqc_module(primitive))
            }
            (other, _) => panic!("algorithm {name}: library {other:?} is not known"),
        });
        let classical = match row["hybrid"] {
            "" => "None".to_string(),
            h => format!("Some(Classical::{})", h[..1].to_uppercase() + &h[1..]),
        };
        let oid = match row["oid"] {
            "" => "None".to_string(),
            oid => format!("Some({oid:?})"),
        };
        let aliases: Vec<&str> = row["aliases"].split_whitespace().collect();
        writeln!(
            algorithms,
            "    Algorithm {{ name: {name:?}, aliases: &{aliases:?}, level: {}, primitive: Primitive::{variant}(&{identifier}), \
             classical: {classical}, post_quantum_first: {}, code_point: {}, oid: {oid} }},",
            row["level"], row["first"] == "pq", row["code_point"],
        )
        .unwrap();
        count += 1;
    }
    let mut out = String::new();
    for (identifier, definition) in primitives {
        writeln!(out, "static {identifier}: {definition}").unwrap();
    }
    writeln!(out, "/// How many algorithms there are.\npub const COUNT: usize = {count};").unwrap();
    writeln!(
        out,
        "/// Every algorithm, in the table's order.\npub static ALGORITHMS: [Algorithm; COUNT] = [\n{algorithms}];"
    )
    .unwrap();
    // OpenSSL does not say for which algorithm it calls `new`: each has functions of its own.
    writeln!(
        out,
        "/// Calls a macro with the index of each algorithm.\nmacro_rules! for_each_algorithm {{ ($f:ident) => {{ ["
    )
    .unwrap();
    for i in 0..count {
        writeln!(out, "    $f!({i}),").unwrap();
    }
    writeln!(out, "] }} }}\npub(crate) use for_each_algorithm;").unwrap();
    out
}

fn kpqc_module(primitive: &str) -> &str {
    ["aimer", "haetae", "ntruplus", "smaugt"]
        .into_iter()
        .find(|m| primitive.starts_with(m))
        .unwrap_or_else(|| panic!("kpqc has no {primitive:?}"))
}
