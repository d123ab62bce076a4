//! tmp
use diode::ManyToOne;
use std::thread;
#[test]
fn d1() {
    for cap in [1, 2, 3, 16, 128] {
        const EACH: u64 = 200_000;
        let (writer, mut reader) = ManyToOne::new(cap).unwrap().split();
        let writers: Vec<_> = (0..2)
            .map(|offset| {
                let writer = writer.clone();
                thread::spawn(move || (0..EACH).for_each(|n| writer.set(Box::new(2 * n + offset))))
            })
            .collect();
        drop(writer);
        let mut newest = [None; 2];
        let mut delivered = 0;
        for value in reader.by_ref() {
            let newest = &mut newest[(*value % 2) as usize];
            assert!(*newest < Some(*value), "the order of each writer is kept");
            *newest = Some(*value);
            delivered += 1;
        }
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        println!("{cap} delivered {delivered}");
        assert_eq!(delivered + reader.missed(), 2 * EACH);
    }
}
