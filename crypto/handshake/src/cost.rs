//! What a handshake costs HAProxy, with OpenSSL's own algorithms and with the provider's fast path, side by side.

use crate::{
    client::Client,
    pki,
    server::{scratch, Providers, Server, Settings},
    stats::spread,
    Result,
};

const CASES: [(&str, &str); 4] = [
    ("X25519MLKEM768", "ML-DSA-65"),
    ("SecP384r1MLKEM1024", "ML-DSA-65"),
    ("MLKEM1024", "ML-DSA-65"),
    ("MLKEM1024", "ML-DSA-87"),
];

pub fn run(rounds: usize, handshakes: usize) -> Result<()> {
    let dir = scratch()?;
    println!("CPU of HAProxy for one full handshake and request, in microseconds: median (quartiles) of {rounds} rounds of {handshakes}, the two by turns\n");
    println!("{:<20} {:<10} {:>28} {:>28}   ratio", "key exchange", "certificate", "OpenSSL", "fast path");
    for (group, algorithm) in CASES {
        let certificate = pki::certificate(dir.path(), algorithm)?;
        let client = Client::new(group, &certificate.file)?;
        let stock = Server::start(dir.path(), "stock", &Settings::new(Providers::Stock, group), &[&certificate.file])?;
        let fast =
            Server::start(dir.path(), "fast", &Settings::new(Providers::Preferred, group), &[&certificate.file])?;
        let round = |server: &Server| -> Result<f64> {
            let before = server.cpu()?;
            for _ in 0..handshakes {
                client.handshake(server.address())?;
            }
            Ok((server.cpu()? - before) / handshakes as f64 * 1e6)
        };
        let (mut slow, mut quick, mut ratios) = (vec![], vec![], vec![]);
        round(&stock)?; // the first connections also fill caches
        round(&fast)?;
        for _ in 0..rounds {
            let (a, b) = (round(&stock)?, round(&fast)?);
            slow.push(a);
            quick.push(b);
            ratios.push(a / b);
        }
        println!(
            "{group:<20} {algorithm:<10} {:>28} {:>28}   {:.2}",
            format!("{:.0}", spread(&slow)),
            format!("{:.0}", spread(&quick)),
            spread(&ratios)
        );
    }
    Ok(())
}
