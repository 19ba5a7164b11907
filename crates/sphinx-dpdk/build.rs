//! Compiles what calls DPDK, whose functions for packets are inline in its headers.

fn main() {
    #[cfg(feature = "dpdk")]
    shim();
}

#[cfg(feature = "dpdk")]
fn shim() {
    println!("cargo::rerun-if-changed=src/shim.c");
    let found = pkg_config::Config::new()
        .atleast_version("22.11")
        .probe("libdpdk");
    let library = match found {
        Ok(library) => library,
        Err(error) => {
            eprintln!(
                "the feature dpdk needs libdpdk 22.11 or newer with its headers (Debian: libdpdk-dev): {error}"
            );
            std::process::exit(1);
        }
    };
    let mut build = cc::Build::new();
    build.file("src/shim.c").includes(&library.include_paths);
    // What else pkg-config names as flags: its crate hands back paths only.
    build.flag("-include").flag("rte_config.h");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        build.flag("-march=corei7");
    }
    // Its headers are not ours to mend.
    build
        .warnings(false)
        .opt_level(3)
        .compile("sphinx_dpdk_shim");
}
